package external

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"storage.liqo.io/sanity-tests/machine"
)

const (
	// NamespaceLabel is the label of all namespaces of the tests.
	NamespaceLabel = "e2e-framework"
	// className is in the name of every class that the tests copy.
	className = "-e2e-sc"
)

// Sweep deletes what interrupted runs have left, and waits until their namespaces are deleted, with
// claims and pods.
func (s *Suite) Sweep(ctx context.Context) error {
	client, err := s.cluster.Client()
	if err != nil {
		return err
	}
	if err := deleteClasses(ctx, client); err != nil {
		return fmt.Errorf("remove the classes of the tests: %w", err)
	}
	return machine.Until(ctx, "the namespaces of the tests to be deleted", func() error { return deleteNamespaces(ctx, client) })
}

func deleteClasses(ctx context.Context, client kubernetes.Interface) error {
	classes, err := client.StorageV1().StorageClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, class := range classes.Items {
		if !strings.Contains(class.Name, className) {
			continue
		}
		err := client.StorageV1().StorageClasses().Delete(ctx, class.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// deleteNamespaces returns the namespaces that are left.
func deleteNamespaces(ctx context.Context, client kubernetes.Interface) error {
	namespaces, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: NamespaceLabel})
	if err != nil {
		return err
	}
	var left []string
	for _, namespace := range namespaces.Items {
		left = append(left, namespace.Name)
		if namespace.DeletionTimestamp != nil {
			continue
		}
		err := client.CoreV1().Namespaces().Delete(ctx, namespace.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("%s are left", strings.Join(left, ", "))
	}
	return nil
}
