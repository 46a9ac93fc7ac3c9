package bench

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
)

// watchBound records when each claim of a namespace is first seen Bound, with the name of its volume.
func watchBound(ctx context.Context, client kubernetes.Interface, namespace string) (*observer, error) {
	return watchClaims(ctx, client, namespace, "claims bound", func(claim *corev1.PersistentVolumeClaim) (bool, string) {
		return claim.Status.Phase == corev1.ClaimBound, claim.Spec.VolumeName
	})
}

func watchClaims(ctx context.Context, client kubernetes.Interface, namespace, what string, done final[*corev1.PersistentVolumeClaim]) (*observer, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	return watchFor(ctx, what, factory, factory.Core().V1().PersistentVolumeClaims().Informer(), done)
}
