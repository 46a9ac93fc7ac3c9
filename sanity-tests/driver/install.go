// Package driver installs the driver under test in a cluster of the lab: it builds the program and
// an image, and installs the chart with Helm. Package chart runs Helm, package
// storage installs the real drivers.
package driver

import (
	"context"
	"fmt"
	"io"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/machine"
)

const CSIName = "storage.liqo.io"

// Options of an installation.
type Options struct {
	// Values replace top-level values of Values().
	Values chart.Values
	// Program and Chart are those of another version: a file, and the folder or package of a chart.
	Program, Chart string
	// Progress gets a line per step; nil discards them.
	Progress io.Writer
}

// Install builds the driver, and installs or upgrades it. It returns when the driver is registered
// on every node.
func Install(ctx context.Context, cluster *clusters.Cluster, options Options) error {
	if options.Progress == nil {
		options.Progress = io.Discard
	}
	started := time.Now()
	step := func(what string) {
		fmt.Fprintf(options.Progress, "%6.1fs  %s: %s\n", time.Since(started).Seconds(), cluster.Name(), what)
	}
	built, err := imageFor(ctx, options.Program)
	if err != nil {
		return err
	}
	step("driver built, image " + built.Name)
	imported, err := cluster.ImportMissing(ctx, built)
	if err != nil {
		return err
	}
	step(fmt.Sprintf("image imported into %d of %d nodes", imported, len(cluster.Nodes())))

	client, err := cluster.Client()
	if err != nil {
		return err
	}
	if err := ensureAttributesClasses(ctx, client); err != nil {
		return err
	}
	helm, err := helmFor(ctx, cluster)
	if options.Chart != "" {
		if err := ensureStorageNamespace(ctx, client); err != nil {
			return err
		}
		helm, err = chart.NewFor(ctx, options.Chart)
	}
	if err != nil {
		return err
	}
	helm.Kubeconfig = cluster.Kubeconfig()
	values := withImage(built.Name, options.Values)
	if err := helm.Install(ctx, chart.Release, chart.Namespace, values); err != nil {
		return fmt.Errorf("install the driver in cluster %s: %w\n%s", cluster.Name(), err, podProblems(ctx, client))
	}
	step("chart installed, pods ready")
	// No pod uses another build any more.
	if err := cluster.RemoveOtherTags(ctx, built.Name); err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	for _, node := range cluster.Nodes() {
		err := machine.Until(ctx, "the driver on node "+node.Name, func() error { return registered(ctx, client, node.Name) })
		if err != nil {
			return err
		}
	}
	step("driver registered on every node")
	return nil
}

// Uninstall uninstalls the release, and returns when its pods are deleted. The namespace of the
// twins is kept.
func Uninstall(ctx context.Context, cluster *clusters.Cluster) error {
	client, err := cluster.Client()
	if err != nil {
		return err
	}
	helm, err := helmFor(ctx, cluster)
	if err != nil {
		return err
	}
	if err := helm.Uninstall(ctx, chart.Release, chart.Namespace); err != nil {
		return fmt.Errorf("uninstall the driver from cluster %s: %w", cluster.Name(), err)
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	return machine.Until(ctx, "the driver's pods in cluster "+cluster.Name()+" to be deleted", func() error {
		pods, err := client.CoreV1().Pods(chart.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(pods.Items) > 0 {
			return fmt.Errorf("%d are left, %s among them", len(pods.Items), pods.Items[0].Name)
		}
		return nil
	})
}

// withImage returns the values of the lab with this image and the changes.
func withImage(name string, changes chart.Values) chart.Values {
	values := Values()
	values["image"] = chart.Values{"tag": strings.TrimPrefix(name, repository+":")}
	maps.Copy(values, changes)
	return values
}

func helmFor(ctx context.Context, cluster *clusters.Cluster) (*chart.Helm, error) {
	helm, err := chart.New(ctx)
	if err != nil {
		return nil, err
	}
	helm.Kubeconfig = cluster.Kubeconfig()
	return helm, nil
}

// ensureStorageNamespace creates the namespace of the twins, which older charts do not create.
func ensureStorageNamespace(ctx context.Context, client kubernetes.Interface) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: chart.StorageNamespace}}
	_, err := client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create the namespace of the twins: %w", err)
	}
	return nil
}

// registered returns an error until the scheduler and csi-provisioner can use the node.
func registered(ctx context.Context, client kubernetes.Interface, node string) error {
	csiNode, err := client.StorageV1().CSINodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	object, err := client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, driver := range csiNode.Spec.Drivers {
		if driver.Name != CSIName {
			continue
		}
		for _, key := range driver.TopologyKeys {
			if object.Labels[key] == "" {
				return fmt.Errorf("node %s has no label %s", node, key)
			}
		}
		return nil
	}
	return fmt.Errorf("CSINode %s does not list %s", node, CSIName)
}
