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

// Runs records which pods of a remote namespace ran for which home pods. It asks the remote cluster
// itself, not through the link that tests cut.
type Runs struct {
	t    *testing.T
	stop func()

	mutex sync.Mutex
	// of has the uids of remote pods by the name and the uid of their home pod.
	of map[string][]string
}

// WatchRuns records until NoneTwice is called or the test ends.
func WatchRuns(t *testing.T, remote *Namespace) *Runs {
	t.Helper()
	watching, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	r := &Runs{t: t, stop: func() { cancel(); ended.Wait() }, of: map[string][]string{}}
	ended.Go(func() {
		if err := r.watch(watching, remote); err != nil && watching.Err() == nil {
			t.Errorf("watch the pods of the remote cluster: %v", err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

// NoneTwice ends the record, and says how many home pods ran. None of them may have run as two remote pods.
func (r *Runs) NoneTwice() (ran int) {
	r.t.Helper()
	r.stop()
	for of, pods := range r.of {
		if len(pods) > 1 {
			Violated(r.t, "%s ran %d times: %v", of, len(pods), pods)
		}
	}
	return len(r.of)
}

func (r *Runs) watch(ctx context.Context, remote *Namespace) error {
	pods := remote.Client.CoreV1().Pods(remote.Name)
	all, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, pod := range all.Items {
		r.note(&pod)
	}
	return Watch(ctx, all.ResourceVersion, pods.Watch, func(event watch.Event) {
		if pod, is := event.Object.(*corev1.Pod); is {
			r.note(pod)
		}
	})
}

func (r *Runs) note(pod *corev1.Pod) {
	started := func(status corev1.ContainerStatus) bool {
		return status.State.Running != nil || status.State.Terminated != nil || status.LastTerminationState.Terminated != nil
	}
	if !slices.ContainsFunc(pod.Status.ContainerStatuses, started) {
		return
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	of := pod.Name + " " + pod.Annotations["fabric.storage.liqo.io/home-pod-uid"]
	if !slices.Contains(r.of[of], string(pod.UID)) {
		r.of[of] = append(r.of[of], string(pod.UID))
	}
}
