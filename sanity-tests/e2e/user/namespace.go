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

// Patience is how long a user waits for anything before giving up. Machines
// that run these tests are small and busy.
const Patience = 4 * time.Minute

// Afterwards is a context for what is done when a test is over, whose own context has ended then.
func Afterwards(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), Patience)
	t.Cleanup(cancel)
	return ctx
}

// Namespace is a test's own corner of a cluster.
type Namespace struct {
	Name    string
	Cluster *clusters.Cluster
	Client  kubernetes.Interface

	t       *testing.T
	kubectl string
	began   time.Time
}

// NewNamespace makes a namespace that goes with the test, with all that is in
// it: claims, and so volumes, must be deletable.
func NewNamespace(t *testing.T, cluster *clusters.Cluster) *Namespace {
	t.Helper()
	return NewNamespaceNamed(t, cluster, "e2e-"+strings.ToLower(rand.Text()[:8]))
}

// NewNamespaceNamed is NewNamespace for tests to whom the name matters.
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

// Existing is a namespace that somebody else makes and removes; it need not be there
// yet. If the test fails, its state is in the log.
func Existing(t *testing.T, cluster *clusters.Cluster, name string) *Namespace {
	t.Helper()
	client, err := client(cluster)
	if err != nil {
		t.Fatal(err)
	}
	n := &Namespace{Name: name, Cluster: cluster, Client: client, t: t, kubectl: lab.Binaries().Path("kubectl"), began: time.Now()}
	t.Cleanup(func() {
		if t.Failed() {
			n.report()
		}
	})
	return n
}

func (n *Namespace) remove() {
	if n.t.Failed() {
		n.report()
	}
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
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
		n.t.Errorf("namespace %s and its volumes do not go away: %v", n.Name, err)
	}
}

// volumesLeft names volumes of claims that are gone, except those that were
// released for an administrator to keep.
func (n *Namespace) volumesLeft(ctx context.Context) (string, error) {
	volumes, err := n.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	var left []string
	for _, volume := range volumes.Items {
		ref := volume.Spec.ClaimRef
		kept := volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain && volume.Status.Phase == corev1.VolumeReleased
		if ref != nil && ref.Namespace == n.Name && !kept {
			left = append(left, fmt.Sprintf("volume %s is %s %s", volume.Name, volume.Status.Phase, volume.Status.Message))
		}
	}
	return strings.Join(left, "; "), nil
}

// Kubectl runs kubectl in the namespace; what it prints must be waited for with
// Eventually where it may take time.
func (n *Namespace) Kubectl(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(n.t.Context(), Patience)
	defer cancel()
	return n.run(ctx, args...)
}

// run runs kubectl, again if the API server cannot be connected to; a command in a pod also if that
// could not be begun.
func (n *Namespace) run(ctx context.Context, args ...string) (string, error) {
	again := notReached
	if len(args) > 0 && args[0] == "exec" {
		again = notStarted
	}
	return n.kubectlIn(ctx, "", again, args...)
}

func (n *Namespace) apply(ctx context.Context, text string) error {
	_, err := n.kubectlIn(ctx, text, notReached, "apply", "-f", "-")
	return err
}

// Eventually waits until nothing is missing any more, and fails the test with
// what was missing last.
func (n *Namespace) Eventually(what string, missing func(ctx context.Context) (string, error)) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), Patience)
	defer cancel()
	if err := until(ctx, missing); err != nil {
		// That a wait ran out is no violation, whatever was seen meanwhile: it may only have been slow.
		n.t.Fatalf("%s: %s", what, strings.ReplaceAll(err.Error(), Violation, ""))
	}
}

func until(ctx context.Context, missing func(ctx context.Context) (string, error)) error {
	last := errors.New("nothing was seen yet")
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
			return fmt.Errorf("gave up: %w", last)
		case <-time.After(250 * time.Millisecond):
		}
	}
}
