package user

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// Watch reports each change after this resourceVersion until ctx is done. It resumes an interrupted
// watch, and fails if it cannot.
func Watch(ctx context.Context, version string, open func(context.Context, metav1.ListOptions) (watch.Interface, error), report func(watch.Event)) error {
	events, err := watchtools.NewRetryWatcherWithContext(ctx, version, &cache.ListWatch{WatchFuncWithContext: open})
	if err != nil {
		return err
	}
	for event := range events.ResultChan() {
		if event.Type == watch.Error {
			return apierrors.FromObject(event.Object)
		}
		report(event)
	}
	if ctx.Err() == nil {
		return errors.New("the watch ended")
	}
	return nil
}

// WatchReclaimPolicy starts to watch a PersistentVolume from this resourceVersion. The returned function waits
// until it has had this reclaim policy, if only temporarily.
func (n *Namespace) WatchReclaimPolicy(t *testing.T, since *corev1.PersistentVolume, policy corev1.PersistentVolumeReclaimPolicy) (wait func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	seen := make(chan struct{})
	go func() {
		once := false
		ended <- Watch(ctx, since.ResourceVersion, func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, since.Name).String()
			return n.Client.CoreV1().PersistentVolumes().Watch(ctx, options)
		}, func(event watch.Event) {
			volume, ok := event.Object.(*corev1.PersistentVolume)
			if ok && !once && volume.Spec.PersistentVolumeReclaimPolicy == policy {
				once = true
				close(seen)
			}
		})
	}()
	t.Cleanup(stop)
	return func() {
		t.Helper()
		defer stop()
		n.Eventually("the PersistentVolume "+since.Name+" to be "+string(policy)+" for a moment at least", func(context.Context) (string, error) {
			select {
			case <-seen:
				return "", nil
			case err := <-ended:
				t.Fatalf("watch the PersistentVolume %s: %v", since.Name, err)
				return "", err
			default:
				return "it never was", nil
			}
		})
	}
}
