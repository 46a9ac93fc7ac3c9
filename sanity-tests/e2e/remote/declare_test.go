package remote

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/machine"
)

// This file declares remote clusters as administrators do.

// spec has fields of a RemoteCluster beyond its kubeconfigSecretRef and its nodeSelector, or instead of them.
type spec map[string]any

func putRemoteCluster(ctx context.Context, home *clusters.Cluster, name string, more spec) error {
	all, err := remoteClusters(home)
	if err != nil {
		return err
	}
	fields := map[string]any{
		"kubeconfigSecretRef": map[string]any{"name": sharedName},
		"nodeSelector":        map[string]any{"matchLabels": map[string]any{clusterLabel: name}},
	}
	maps.Copy(fields, more)
	// The driver may update the status concurrently.
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		object, err := all.Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			object = &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "storage.liqo.io/v1alpha1", "kind": "RemoteCluster",
				"metadata": map[string]any{"name": name}, "spec": fields,
			}}
			_, err = all.Create(ctx, object, metav1.CreateOptions{})
		case err == nil:
			object.Object["spec"] = fields
			_, err = all.Update(ctx, object, metav1.UpdateOptions{})
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("declare cluster %s: %w", name, err)
	}
	return nil
}

// mappedNamespaces maps only these namespaces.
func mappedNamespaces(namespaces map[string]any) spec {
	return spec{"namespaces": map[string]any{"strategy": "Mapped", "mapping": namespaces}}
}

// deleteRemoteCluster waits until it is deleted: the driver keeps its finalizer while it has volumes.
func deleteRemoteCluster(ctx context.Context, home *clusters.Cluster, name string) error {
	all, err := remoteClusters(home)
	if err != nil {
		return err
	}
	return machine.Until(ctx, "RemoteCluster "+name+" to be deleted", func() error {
		err := all.Delete(ctx, name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		return errors.New("it has a finalizer")
	})
}

func remoteClusters(home *clusters.Cluster) (dynamic.ResourceInterface, error) {
	config, err := home.Config()
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return client.Resource(schema.GroupVersionResource{Group: "storage.liqo.io", Version: "v1alpha1", Resource: "remoteclusters"}), nil
}

// putSecret creates or updates the Secret with the kubeconfig of a RemoteCluster.
func putSecret(ctx context.Context, home *clusters.Cluster, name string, kubeconfig []byte) error {
	client, err := home.Client()
	if err != nil {
		return err
	}
	secrets := client.CoreV1().Secrets(chart.Namespace)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string][]byte{"kubeconfig": kubeconfig}}
	_, err = secrets.Create(ctx, secret, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = secrets.Update(ctx, secret, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("write the Secret of cluster %s: %w", name, err)
	}
	return nil
}

func deleteSecret(ctx context.Context, home *clusters.Cluster, name string) error {
	client, err := home.Client()
	if err != nil {
		return err
	}
	err = client.CoreV1().Secrets(chart.Namespace).Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete the Secret of cluster %s: %w", name, err)
	}
	return nil
}

// deleteRemoteCluster does not wait.
func (p *pair) deleteRemoteCluster() {
	p.t.Helper()
	if out, err := p.home.Kubectl("delete", "remotecluster", p.cluster, "--wait=false"); err != nil {
		p.t.Fatal(err, out)
	}
}

// waitDeletionBlocked waits until the RemoteCluster reports that this object blocks its deletion.
func (p *pair) waitDeletionBlocked(object string) {
	p.t.Helper()
	p.waitStatus("it is held by "+object, func(s status) bool {
		return hasCondition(s, "Ready", metav1.ConditionFalse, "HoldsVolumes") &&
			strings.Contains(meta.FindStatusCondition(s.Conditions, "Ready").Message, object)
	})
}
