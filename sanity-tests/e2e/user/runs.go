package user

import (
	"context"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// Runs records which pods of a remote namespace ran for which home pods. It watches the remote cluster
// directly, and not over the link that tests cut.
type Runs struct {
	t    *testing.T
	stop func()

	mutex sync.Mutex
	// remotePods are uids by the name and the uid of the home pod.
	remotePods map[string][]string
}

// WatchRuns records until CheckNoneTwice is called or the test ends.
func WatchRuns(t *testing.T, remote *Namespace) *Runs {
	t.Helper()
	watching, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	r := &Runs{t: t, stop: func() { cancel(); ended.Wait() }, remotePods: map[string][]string{}}
	ended.Go(func() {
		if err := r.watch(watching, remote); err != nil && watching.Err() == nil {
			t.Errorf("watch the pods of the remote cluster: %v", err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

// CheckNoneTwice stops recording, checks that no home pod ran as two remote pods, and returns how many ran.
func (r *Runs) CheckNoneTwice() (ran int) {
	r.t.Helper()
	r.stop()
	for home, pods := range r.remotePods {
		if len(pods) > 1 {
			Violated(r.t, "%s ran %d times: %v", home, len(pods), pods)
		}
	}
	return len(r.remotePods)
}

func (r *Runs) watch(ctx context.Context, remote *Namespace) error {
	pods := remote.Client.CoreV1().Pods(remote.Name)
	all, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, pod := range all.Items {
		r.record(&pod)
	}
	return Watch(ctx, all.ResourceVersion, pods.Watch, func(event watch.Event) {
		if pod, ok := event.Object.(*corev1.Pod); ok {
			r.record(pod)
		}
	})
}

func (r *Runs) record(pod *corev1.Pod) {
	started := func(status corev1.ContainerStatus) bool {
		return status.State.Running != nil || status.State.Terminated != nil || status.LastTerminationState.Terminated != nil
	}
	if !slices.ContainsFunc(pod.Status.ContainerStatuses, started) {
		return
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	home := pod.Name + " " + pod.Annotations["fabric.storage.liqo.io/home-pod-uid"]
	if !slices.Contains(r.remotePods[home], string(pod.UID)) {
		r.remotePods[home] = append(r.remotePods[home], string(pod.UID))
	}
}
