// Package fabric shows that the reflecting fabric does what other tests rely
// on: pods bound to its virtual node run in the other cluster, and the Node is
// one for everybody else. liqo-csi is not involved.
package fabric

import (
	"context"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/fabric"
)

func TestMain(m *testing.M) { user.Main(m) }

// twoNamespaces are one in each cluster, with different names.
func twoNamespaces(t *testing.T) (home, remote *user.Namespace) {
	t.Helper()
	return user.NewNamespace(t, user.Cluster(t, "home")), user.NewNamespace(t, user.Cluster(t, "remote"))
}

// start starts a fabric that ends before the namespaces do.
func start(t *testing.T, options fabric.Options) *fabric.Fabric {
	t.Helper()
	options.Home, options.Remote = user.Cluster(t, "home"), user.Cluster(t, "remote")
	options.Progress = journal(t)
	f, err := fabric.Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, f) })
	return f
}

func stop(t *testing.T, f *fabric.Fabric) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), user.Timeout)
	defer cancel()
	if err := f.Stop(ctx); err != nil {
		t.Error(err)
	}
}

// between maps the one namespace to the other, and no others.
func between(home, remote *user.Namespace) func(string) (string, bool) {
	return func(namespace string) (string, bool) { return remote.Name, namespace == home.Name }
}

// journal is what the fabric said, for the log of a test that fails.
func journal(t *testing.T) *record {
	kept := &record{}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(kept.String())
		}
	})
	return kept
}

type record struct {
	mutex sync.Mutex
	text  strings.Builder
}

func (r *record) Write(text []byte) (int, error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.text.Write(text)
}

func (r *record) String() string {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.text.String()
}

// bound puts a pod on a node whatever the scheduler thinks: it would want the
// claim to be in the home cluster too.
func bound(node string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.NodeName = node
		tolerant(pod)
	}
}

func tolerant(pod *corev1.Pod) {
	pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
}

func withoutVolume(pod *corev1.Pod) {
	pod.Spec.Volumes, pod.Spec.Containers[0].VolumeMounts = nil, nil
}

// patient lets the containers end by themselves for some seconds.
func patient(pod *corev1.Pod) { pod.Spec.TerminationGracePeriodSeconds = new(int64(5)) }

// get is a pod, or nil when there is none.
func get(t *testing.T, n *user.Namespace, name string) *corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	n.Eventually("look at pod "+name, func(ctx context.Context) (string, error) {
		found, err := n.Client.CoreV1().Pods(n.Name).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		pod = found
		return "", err
	})
	return pod
}

// waitPending waits until a pod tells why it does not run.
func waitPending(t *testing.T, n *user.Namespace, name, reason, words string) {
	t.Helper()
	n.Eventually("pod "+name+" tells "+reason, func(ctx context.Context) (string, error) {
		pod, err := n.Client.CoreV1().Pods(n.Name).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		status := pod.Status
		if status.Phase == corev1.PodPending && status.Reason == reason && strings.Contains(status.Message, words) {
			return "", nil
		}
		return string(status.Phase) + " " + status.Reason + ": " + status.Message, nil
	})
}

func waitGone(t *testing.T, n *user.Namespace, name string) {
	t.Helper()
	n.Eventually("pod "+name+" goes away", func(ctx context.Context) (string, error) {
		_, err := n.Client.CoreV1().Pods(n.Name).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "it is still there", err
	})
}
