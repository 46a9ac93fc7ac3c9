package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/driver"
)

const (
	// virtualNode represents the remote cluster in the home cluster.
	virtualNode = "to-remote"
	// clusterKey is the label that the driver gives every node.
	clusterKey = "topology.storage.liqo.io/cluster"
	// disconnectTimeout is the timeout of each deletion at the end.
	disconnectTimeout = 90 * time.Second
)

var remoteClusters = schema.GroupVersionResource{Group: "storage.liqo.io", Version: "v1alpha1", Resource: "remoteclusters"}

// connect declares the remote cluster and offloads the namespace. After a demo that was killed it continues, and deletes that demo's
// pods and claims.
func (s *story) connect(ctx context.Context) error {
	if err := s.declareRemoteCluster(ctx); err != nil {
		return err
	}
	if err := s.recreateNamespace(ctx); err != nil {
		return err
	}
	if err := s.showVirtualNode(ctx); err != nil {
		return err
	}
	err := s.command(ctx, "offload", "namespace", homeNamespace,
		"--namespace-mapping-strategy", "SelectedName", "--remote-namespace-name", remoteNamespace)
	fmt.Println()
	return err
}

// declareRemoteCluster creates the RemoteCluster, and the Secret with the kubeconfig from the other
// administrator.
func (s *story) declareRemoteCluster(ctx context.Context) (err error) {
	var kubeconfig []byte
	if s.access, kubeconfig, err = driver.GrantAccess(ctx, s.home.cluster, s.remote.cluster, nil); err != nil {
		return fmt.Errorf("rights in cluster %s: %w", remote, err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: remote}, Data: map[string][]byte{"kubeconfig": kubeconfig}}
	secrets := s.home.client.CoreV1().Secrets(chart.Namespace)
	if _, err = secrets.Create(ctx, secret, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
		_, err = secrets.Update(ctx, secret, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("store the kubeconfig of cluster %s: %w", remote, err)
	}

	wanted := remoteCluster()
	known := s.dynamic.Resource(remoteClusters)
	object, err := known.Get(ctx, remote, metav1.GetOptions{})
	switch {
	case err == nil:
		object.Object["spec"] = wanted.Object["spec"]
		_, err = known.Update(ctx, object, metav1.UpdateOptions{})
	case apierrors.IsNotFound(err):
		_, err = known.Create(ctx, wanted, metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("create the RemoteCluster of cluster %s: %w", remote, err)
	}
	return nil
}

func remoteCluster() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": remoteClusters.GroupVersion().String(),
		"kind":       "RemoteCluster",
		"metadata":   map[string]any{"name": remote},
		"spec": map[string]any{
			"kubeconfigSecretRef": map[string]any{"name": remote},
			"fabric":              map[string]any{"nodeName": virtualNode},
		},
	}}
}

func (s *story) recreateNamespace(ctx context.Context) error {
	if err := s.removeNamespace(ctx, s.home); err != nil {
		return err
	}
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: homeNamespace}}
	_, err := s.home.client.CoreV1().Namespaces().Create(ctx, object, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create namespace %s of cluster %s: %w", homeNamespace, home, err)
	}
	return nil
}

// removeNamespace is done when the volumes of its claims are deleted, too.
func (s *story) removeNamespace(ctx context.Context, in side) error {
	what := fmt.Sprintf("namespace %s of cluster %s", in.namespace, in.cluster.Name())
	err := s.until(ctx, what+" to be deleted", func(ctx context.Context) error {
		return checkDeleted(in.client.CoreV1().Namespaces().Delete(ctx, in.namespace, metav1.DeleteOptions{}), what)
	})
	if err != nil {
		return err
	}
	return s.until(ctx, "the volumes of "+what+" to be deleted", func(ctx context.Context) error {
		volumes, err := in.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, volume := range volumes.Items {
			if ref := volume.Spec.ClaimRef; ref != nil && ref.Namespace == in.namespace {
				return fmt.Errorf("volume %s is %s %s", volume.Name, volume.Status.Phase, volume.Status.Message)
			}
		}
		return nil
	})
}

// showVirtualNode shows what the driver added to the node, when the scheduler can use it.
func (s *story) showVirtualNode(ctx context.Context) error {
	capacity, err := s.capacity(ctx)
	if err != nil {
		return err
	}
	node, err := s.usableVirtualNode(ctx)
	if err != nil {
		return err
	}
	nodes, err := s.home.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	object, err := s.readyRemoteCluster(ctx)
	if err != nil {
		return err
	}
	secret, _, _ := unstructured.NestedString(object.Object, "spec", "kubeconfigSecretRef", "name")
	version, _, _ := unstructured.NestedString(object.Object, "status", "serverVersion")
	line("cluster", "RemoteCluster %s, kubeconfig in Secret %s/%s; %s, %s", object.GetName(), chart.Namespace, secret,
		strings.Join(conditionsOf(object), ", "), version)
	line("fabric", "made node %s, which stands for that cluster: %s CPUs, %s of memory", node.Name,
		node.Status.Allocatable.Cpu(), node.Status.Allocatable.Memory())
	for _, node := range nodes.Items {
		line("node", "%s has from the driver %s=%s", node.Name, clusterKey, node.Labels[clusterKey])
	}
	line("scheduler", "knows that class %s has a capacity of %s there", class, capacity)
	return nil
}

// readyRemoteCluster waits until the driver reports that twins can be created there.
func (s *story) readyRemoteCluster(ctx context.Context) (object *unstructured.Unstructured, err error) {
	err = s.until(ctx, "RemoteCluster "+remote+" to be ready", func(ctx context.Context) error {
		if object, err = s.dynamic.Resource(remoteClusters).Get(ctx, remote, metav1.GetOptions{}); err != nil {
			return err
		}
		observed, _, _ := unstructured.NestedInt64(object.Object, "status", "observedGeneration")
		if conditions := conditionsOf(object); observed != object.GetGeneration() || !slices.Contains(conditions, "Ready: True") {
			reason, _, _ := unstructured.NestedString(object.Object, "status", "lastError")
			return fmt.Errorf("it is %q %s", conditions, reason)
		}
		return nil
	})
	return object, err
}

// conditionsOf returns the conditions of a RemoteCluster.
func conditionsOf(object *unstructured.Unstructured) (texts []string) {
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	for _, condition := range conditions {
		if fields, is := condition.(map[string]any); is {
			texts = append(texts, fmt.Sprintf("%v: %v", fields["type"], fields["status"]))
		}
	}
	return texts
}

// capacity returns the capacity that the driver has published for the class in the remote cluster.
func (s *story) capacity(ctx context.Context) (room string, err error) {
	err = s.until(ctx, "capacity of class "+class+" in cluster "+remote, func(ctx context.Context) error {
		published, err := s.home.client.StorageV1().CSIStorageCapacities(chart.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, each := range published.Items {
			if each.StorageClassName == class && selectsCluster(each.NodeTopology, remote) && !each.Capacity.IsZero() {
				room = each.Capacity.String()
				return nil
			}
		}
		return errors.New("none is published")
	})
	return room, err
}

func selectsCluster(topology *metav1.LabelSelector, id string) bool {
	return topology != nil && slices.ContainsFunc(topology.MatchExpressions, func(wanted metav1.LabelSelectorRequirement) bool {
		return wanted.Key == clusterKey && slices.Contains(wanted.Values, id)
	})
}

// usableVirtualNode waits until csi-provisioner can use the node.
func (s *story) usableVirtualNode(ctx context.Context) (node *corev1.Node, err error) {
	err = s.until(ctx, "the driver to prepare node "+virtualNode, func(ctx context.Context) error {
		if node, err = s.home.client.CoreV1().Nodes().Get(ctx, virtualNode, metav1.GetOptions{}); err != nil {
			return err
		}
		if node.Labels[clusterKey] != remote {
			return fmt.Errorf("it has no label %s=%s", clusterKey, remote)
		}
		if node.Status.Allocatable.Cpu().IsZero() {
			return errors.New("the capacity of the cluster is not published")
		}
		csiNode, err := s.home.client.StorageV1().CSINodes().Get(ctx, virtualNode, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, known := range csiNode.Spec.Drivers {
			if known.Name == driver.CSIName {
				return nil
			}
		}
		return fmt.Errorf("its CSINode does not list %s", driver.CSIName)
	})
	return node, err
}

// disconnect undoes connect, also after an error or when ctx is done. If one deletion fails, it continues
// with the others.
func (s *story) disconnect(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	var failed error
	step := func(what string, remove func(context.Context) error) {
		ctx, cancel := context.WithTimeout(ctx, disconnectTimeout)
		defer cancel()
		if err := remove(ctx); err != nil {
			failed = errors.Join(failed, err)
			return
		}
		line("removed", "%s", what)
	}
	// The RemoteCluster last, because the driver needs it to delete remote data. The remote
	// namespace is deleted with the one at home.
	step("namespace "+homeNamespace, func(ctx context.Context) error { return s.removeNamespace(ctx, s.home) })
	step("namespace "+remoteNamespace+" of cluster "+remote, func(ctx context.Context) error { return s.removeNamespace(ctx, s.remote) })
	step("RemoteCluster "+remote, s.removeRemoteCluster)
	step("Secret "+chart.Namespace+"/"+remote, func(ctx context.Context) error {
		err := s.home.client.CoreV1().Secrets(chart.Namespace).Delete(ctx, remote, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	if s.access != nil {
		step("rights in cluster "+remote, s.access.Revoke)
	}
	return failed
}

func (s *story) removeRemoteCluster(ctx context.Context) error {
	what := "RemoteCluster " + remote
	return s.until(ctx, what+" to be deleted", func(ctx context.Context) error {
		return checkDeleted(s.dynamic.Resource(remoteClusters).Delete(ctx, remote, metav1.DeleteOptions{}), what)
	})
}
