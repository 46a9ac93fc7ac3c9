package user

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"storage.liqo.io/sanity-tests/clusters"
)

// Timeout is the timeout of all waits. Machines that run these tests are small and busy.
const Timeout = 4 * time.Minute

// CleanupContext returns a context for clean-up, when the test's own context is cancelled.
func CleanupContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), Timeout)
	t.Cleanup(cancel)
	return ctx
}

// Namespace is a namespace of a test.
type Namespace struct {
	Name    string
	Cluster *clusters.Cluster
	Client  kubernetes.Interface

	t       *testing.T
	kubectl string
	began   time.Time
}

// NewNamespace creates a namespace, and deletes it with all its objects at the end of the test. Its
// claims and volumes must be deletable.
func NewNamespace(t *testing.T, cluster *clusters.Cluster) *Namespace {
	t.Helper()
	return NewNamespaceNamed(t, cluster, "e2e-"+strings.ToLower(rand.Text()[:8]))
}

// NewNamespaceNamed is NewNamespace with this name.
func NewNamespaceNamed(t *testing.T, cluster *clusters.Cluster, name string) *Namespace {
	t.Helper()
	client, err := client(cluster)
	if err != nil {
		t.Fatal(err)
	}
	n := &Namespace{Name: name, Cluster: cluster, Client: client, t: t, kubectl: lab.Binaries().Path("kubectl"), began: time.Now()}
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: name, Annotations: map[string]string{"e2e/test": t.Name()},
	}}
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatalf("create namespace: %v", err)
	}
	t.Cleanup(n.remove)
	return n
}

// ExistingNamespace is a namespace that something else creates and deletes, and that need not exist yet. If the
// test fails, its state is logged.
func ExistingNamespace(t *testing.T, cluster *clusters.Cluster, name string) *Namespace {
	t.Helper()
	client, err := client(cluster)
	if err != nil {
		t.Fatal(err)
	}
	n := &Namespace{Name: name, Cluster: cluster, Client: client, t: t, kubectl: lab.Binaries().Path("kubectl"), began: time.Now()}
	t.Cleanup(n.reportIfFailed)
	return n
}

func (n *Namespace) reportIfFailed() {
	if n.t.Failed() {
		n.report()
	}
}

func (n *Namespace) remove() {
	n.reportIfFailed()
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	if err := n.Client.CoreV1().Namespaces().Delete(ctx, n.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		n.t.Errorf("delete namespace %s: %v", n.Name, err)
		return
	}
	err := until(ctx, func(ctx context.Context) (string, error) {
		found, err := n.Client.CoreV1().Namespaces().Get(ctx, n.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return n.volumesLeft(ctx)
		}
		if err != nil {
			return "", err
		}
		return fmt.Sprint(found.Status.Conditions), nil
	})
	if err != nil {
		n.t.Errorf("namespace %s or its volumes are not deleted: %v", n.Name, err)
	}
}

// volumesLeft returns volumes of deleted claims, except those that are retained.
func (n *Namespace) volumesLeft(ctx context.Context) (string, error) {
	volumes, err := n.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	var left []string
	for _, volume := range volumes.Items {
		ref := volume.Spec.ClaimRef
		retained := volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain && volume.Status.Phase == corev1.VolumeReleased
		if ref != nil && ref.Namespace == n.Name && !retained {
			left = append(left, fmt.Sprintf("volume %s is %s %s", volume.Name, volume.Status.Phase, volume.Status.Message))
		}
	}
	return strings.Join(left, "; "), nil
}

// Kubectl runs kubectl in the namespace and returns its output.
func (n *Namespace) Kubectl(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(n.t.Context(), Timeout)
	defer cancel()
	return n.run(ctx, args...)
}

// run runs kubectl, and retries if it cannot connect to the API server or, with exec, start the command.
func (n *Namespace) run(ctx context.Context, args ...string) (string, error) {
	retryOn := notReached
	if len(args) > 0 && args[0] == "exec" {
		retryOn = notStarted
	}
	return n.kubectlIn(ctx, "", retryOn, args...)
}

func (n *Namespace) apply(ctx context.Context, text string) error {
	_, err := n.kubectlIn(ctx, text, notReached, "apply", "-f", "-")
	return err
}

// Eventually waits until missing returns "", and otherwise fails the test with its last result.
func (n *Namespace) Eventually(what string, missing func(ctx context.Context) (string, error)) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), Timeout)
	defer cancel()
	if err := until(ctx, missing); err != nil {
		// A timeout is not a violation, because the machine may be slow.
		n.t.Fatalf("%s: %s", what, strings.ReplaceAll(err.Error(), Violation, ""))
	}
}

func until(ctx context.Context, missing func(ctx context.Context) (string, error)) error {
	last := errors.New("no result yet")
	for {
		what, err := missing(ctx)
		switch {
		case err == nil && what == "":
			return nil
		case err == nil:
			last = errors.New(what)
		case ctx.Err() == nil:
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("timeout: %w", last)
		case <-time.After(250 * time.Millisecond):
		}
	}
}
