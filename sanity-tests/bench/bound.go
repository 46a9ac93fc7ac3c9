package bench

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
)

// watchBound notes when each claim of a namespace is first seen Bound; its note is
// its volume.
func watchBound(ctx context.Context, client kubernetes.Interface, namespace string) (*sightings, error) {
	return watchClaims(ctx, client, namespace, "claims bound", func(claim *corev1.PersistentVolumeClaim) (bool, string) {
		return claim.Status.Phase == corev1.ClaimBound, claim.Spec.VolumeName
	})
}

func watchClaims(ctx context.Context, client kubernetes.Interface, namespace, what string, done look[*corev1.PersistentVolumeClaim]) (*sightings, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	return watchFor(ctx, what, factory, factory.Core().V1().PersistentVolumeClaims().Informer(), done)
}
