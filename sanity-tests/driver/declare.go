package driver

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/machine"
)

// RemoteClusters is the resource by which an administrator declares a cluster to the driver.
var RemoteClusters = schema.GroupVersionResource{Group: "storage.liqo.io", Version: "v1alpha1", Resource: "remoteclusters"}

// Declare creates a RemoteCluster with its Secret, and waits until its virtual node is ready.
func Declare(ctx context.Context, home *clusters.Cluster, name string, kubeconfig []byte, fabric map[string]any) error {
	client, err := home.Client()
	if err != nil {
		return err
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string][]byte{"kubeconfig": kubeconfig}}
	_, err = client.CoreV1().Secrets(chart.Namespace).Create(ctx, secret, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	all, err := resourceIn(home, RemoteClusters)
	if err != nil {
		return err
	}
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": RemoteClusters.GroupVersion().String(), "kind": "RemoteCluster",
		"metadata": map[string]any{"name": name},
		"spec":     map[string]any{"kubeconfigSecretRef": map[string]any{"name": name}, "fabric": fabric},
	}}
	_, err = all.Create(ctx, object, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("declare the remote cluster: %w", err)
	}
	node, _ := fabric["nodeName"].(string)
	return machine.Until(ctx, "node "+node+" to be ready", func() error {
		found, err := client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range found.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("its conditions: %v", found.Status.Conditions)
	})
}

// Undeclare deletes the RemoteCluster, waits until the driver has removed its finalizer, and deletes
// the Secret.
func Undeclare(ctx context.Context, home *clusters.Cluster, name string) error {
	all, err := resourceIn(home, RemoteClusters)
	if err != nil {
		return err
	}
	deleted := machine.Until(ctx, "RemoteCluster "+name+" to be deleted", func() error {
		err := all.Delete(ctx, name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		return errors.New("it has finalizers")
	})
	client, err := home.Client()
	if err != nil {
		return errors.Join(deleted, err)
	}
	err = client.CoreV1().Secrets(chart.Namespace).Delete(ctx, name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return errors.Join(deleted, err)
}

// Routed returns the network of a remote cluster for its RemoteCluster: in the lab, pod networks are
// routed.
func Routed(remote *clusters.Cluster) map[string]any {
	var addresses []any
	for _, node := range remote.Nodes() {
		addresses = append(addresses, node.PodCIDR)
	}
	return map[string]any{"mode": "Routed", "podCIDRs": addresses}
}

func resourceIn(cluster *clusters.Cluster, resource schema.GroupVersionResource) (dynamic.ResourceInterface, error) {
	config, err := cluster.Config()
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return client.Resource(resource), nil
}
