package remote

import (
	"context"
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/machine"
)

// This file does what the administrator does who declares remote clusters.

// spec is what a RemoteCluster says beyond its Secret and its nodes, for which it
// has the label with its name.
type spec map[string]any

func putRemoteCluster(ctx context.Context, home *clusters.Cluster, name string, more spec) error {
	all, err := remoteClusters(home)
	if err != nil {
		return err
	}
	said := map[string]any{
		"kubeconfigSecretRef": map[string]any{"name": sharedName},
		"nodeSelector":        map[string]any{"matchLabels": map[string]any{clusterLabel: name}},
	}
	maps.Copy(said, more)
	// The driver writes the status at any time.
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		object, err := all.Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			object = &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "storage.liqo.io/v1alpha1", "kind": "RemoteCluster",
				"metadata": map[string]any{"name": name}, "spec": said,
			}}
			_, err = all.Create(ctx, object, metav1.CreateOptions{})
		case err == nil:
			object.Object["spec"] = said
			_, err = all.Update(ctx, object, metav1.UpdateOptions{})
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("declare cluster %s: %w", name, err)
	}
	return nil
}

// mappedNamespaces is what is said when only some namespaces are known there.
func mappedNamespaces(namespaces map[string]any) spec {
	return spec{"namespaces": map[string]any{"strategy": "Mapped", "mapping": namespaces}}
}

// deleteRemoteCluster returns when it is gone: the driver holds one with volumes.
func deleteRemoteCluster(ctx context.Context, home *clusters.Cluster, name string) error {
	all, err := remoteClusters(home)
	if err != nil {
		return err
	}
	return machine.Until(ctx, "RemoteCluster "+name+" to go", func() error {
		err := all.Delete(ctx, name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		return errors.New("it is held")
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

// putSecret writes a kubeconfig where RemoteClusters look for it.
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
