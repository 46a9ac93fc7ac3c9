// Package fabric tests the fabric of the tests without the driver: pods bound to its virtual node run in the other
// cluster, and its Node works for other clients.
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

// newNamespaces creates a namespace in each cluster, with different names.
func newNamespaces(t *testing.T) (home, remote *user.Namespace) {
	t.Helper()
	return user.NewNamespace(t, user.Cluster(t, "home")), user.NewNamespace(t, user.Cluster(t, "remote"))
}

// startPlain creates namespaces and starts a plain fabric between them.
func startPlain(t *testing.T) (home, remote *user.Namespace, options fabric.Options) {
	t.Helper()
	home, remote = newNamespaces(t)
	options = fabric.Plain("plain-" + home.Name)
	options.Namespace = mapNamespace(home, remote)
	start(t, options)
	return home, remote, options
}

// start starts a fabric, and stops it before the namespaces are deleted.
func start(t *testing.T, options fabric.Options) *fabric.Fabric {
	t.Helper()
	options.Home, options.Remote = user.Cluster(t, "home"), user.Cluster(t, "remote")
	options.Progress = logOnFailure(t)
	f, err := fabric.Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, f) })
	return f
}

func stop(t *testing.T, f *fabric.Fabric) {
	t.Helper()
	if err := f.Stop(user.CleanupContext(t)); err != nil {
		t.Error(err)
	}
}

// mapNamespace maps only the home namespace.
func mapNamespace(home, remote *user.Namespace) func(string) (string, bool) {
	return func(namespace string) (string, bool) { return remote.Name, namespace == home.Name }
}

// logOnFailure returns a writer whose text is logged if the test fails.
func logOnFailure(t *testing.T) *logBuffer {
	buffer := &logBuffer{}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(buffer.String())
		}
	})
	return buffer
}

type logBuffer struct {
	mutex sync.Mutex
	text  strings.Builder
}

func (r *logBuffer) Write(text []byte) (int, error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.text.Write(text)
}

func (r *logBuffer) String() string {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.text.String()
}

// boundTo binds a pod to a node without the scheduler, which would need its claim in the home cluster.
func boundTo(node string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.NodeName = node
		withTolerations(pod)
	}
}

func withTolerations(pod *corev1.Pod) {
	pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
}

func withoutVolume(pod *corev1.Pod) {
	pod.Spec.Volumes, pod.Spec.Containers[0].VolumeMounts = nil, nil
}

// withGracePeriod sets a grace period of 5 seconds.
func withGracePeriod(pod *corev1.Pod) { pod.Spec.TerminationGracePeriodSeconds = new(int64(5)) }

// getPod returns a pod, nil if it does not exist.
func getPod(t *testing.T, n *user.Namespace, name string) *corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	n.Eventually("read pod "+name, func(ctx context.Context) (string, error) {
		found, err := n.Client.CoreV1().Pods(n.Name).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		pod = found
		return "", err
	})
	return pod
}

// waitPending waits until a pod is Pending with this reason, and these words in its message.
func waitPending(t *testing.T, n *user.Namespace, name, reason, words string) {
	t.Helper()
	n.Eventually("pod "+name+" is Pending with the reason "+reason, func(ctx context.Context) (string, error) {
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
