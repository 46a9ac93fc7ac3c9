// Package remote shows on the lab what users of class liqo get when their pod
// lands on a virtual node: its twin in the cluster behind that node, under the
// name the pod asks for there, and pods that run there and return to their data.
//
// Volumes at home are e2e/driver's business, the fabric alone is e2e/fabric's.
package remote

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/fabric"
	"storage.liqo.io/sanity-tests/machine"
)

// Parallel tests start in the order of their files' names: those with the longest tests come
// first, so that the suite does not end with one of them alone.
func TestMain(m *testing.M) {
	objects, errObjects = user.BeforeTests("the command that makes the objects of fabrics", buildObjects)
	user.MainOverDriver(m, removeFabrics, shared.remove)
}

const (
	// sharedName is the id of the remote cluster that most tests use, and the
	// name of all that was made for it.
	sharedName = "remote"
	// sharedNode stands for it.
	sharedNode = "virtual-remote"
	// clusterLabel is how the RemoteClusters of these tests select their nodes.
	clusterLabel = "e2e.storage.test/cluster"
)

// shared is made by the first test that needs it, and removed after the last.
var shared setup

type setup struct {
	once       sync.Once
	err        error
	home       *clusters.Cluster
	kubeconfig []byte
	fabric     *fabric.Fabric
}

// offloaded gives the test a namespace of the same name in both clusters, beside
// the other tests.
func offloaded(t *testing.T) *pair {
	t.Helper()
	t.Parallel()
	return offloadedAlone(t)
}

// offloadedAlone is offloaded for tests beside which nothing may run.
func offloadedAlone(t *testing.T) *pair {
	t.Helper()
	prepare(t)
	remote := user.NewNamespace(t, user.Cluster(t, "remote"))
	p := &pair{t: t, node: sharedNode, cluster: sharedName, remote: remote}
	t.Cleanup(p.wantNoTwins)
	p.home = user.NewNamespaceNamed(t, user.Cluster(t, "home"), remote.Name)
	return p
}

func prepare(t *testing.T) {
	t.Helper()
	home, remote := user.Cluster(t, "home"), user.Cluster(t, "remote")
	shared.once.Do(func() { shared.err = shared.make(context.WithoutCancel(t.Context()), home, remote) })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
}

func (s *setup) make(ctx context.Context, home, remote *clusters.Cluster) error {
	s.home = home
	client, err := home.Client()
	if err != nil {
		return err
	}
	if err := makeTenantNamespaces(ctx, client); err != nil {
		return err
	}
	if err := driver.Install(ctx, home, driver.Options{Progress: os.Stderr, Values: sharedValues()}); err != nil {
		return err
	}
	// Pods that copy run there, where no driver is.
	if err := driver.ImportImage(ctx, remote); err != nil {
		return err
	}
	if s.kubeconfig, err = os.ReadFile(remote.ProxyKubeconfig()); err != nil {
		return fmt.Errorf("the kubeconfig of the remote cluster: %w", err)
	}
	if err := putSecret(ctx, home, sharedName, s.kubeconfig); err != nil {
		return err
	}
	if err := putRemoteCluster(ctx, home, sharedName, spec{}); err != nil {
		return err
	}
	options := virtualNode(sharedNode, sharedName)
	options.Home, options.Remote = home, remote
	if s.fabric, err = fabric.Start(ctx, options); err != nil {
		return err
	}
	return awaitMarked(ctx, home, sharedNode, sharedName)
}

// sharedValues are those with which the driver is installed for these tests.
func sharedValues() chart.Values {
	return chart.Values{
		"liqo":                      chart.Values{"tenantNamespaces": tenantNamespaces()},
		"allowedRealStorageClasses": []string{annotatedClass, namedClass, movedClass},
		"carriedAnnotations":        []string{"cost-center"},
	}
}

// makeTenantNamespaces makes Liqo's namespaces, also when those of tests that ran
// just before are still on their way out.
func makeTenantNamespaces(ctx context.Context, client kubernetes.Interface) error {
	ctx, cancel := context.WithTimeout(ctx, user.Patience)
	defer cancel()
	for _, name := range tenantNamespaces() {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		err := machine.Until(ctx, "Liqo's namespace "+name, func() error {
			_, err := client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
			if !apierrors.IsAlreadyExists(err) {
				return err
			}
			found, err := client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
			if err == nil && found.DeletionTimestamp != nil {
				return errors.New("the one of before is being deleted")
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *setup) remove(ctx context.Context) error {
	if s.home == nil {
		return nil
	}
	errs := []error{deleteRemoteCluster(ctx, s.home, sharedName), deleteSecret(ctx, s.home, sharedName)}
	if s.fabric != nil {
		errs = append(errs, s.fabric.Stop(ctx))
	}
	client, err := s.home.Client()
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, name := range tenantNamespaces() {
		err := client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// virtualNode is a node that the RemoteCluster of that name selects. Its tests
// make remote namespaces themselves.
func virtualNode(node, cluster string) fabric.Options {
	options := fabric.Plain(node)
	options.Labels[clusterLabel] = cluster
	options.NoNamespaces = true
	return options
}

// awaitMarked waits until the scheduler and csi-provisioner can use the node.
func awaitMarked(ctx context.Context, home *clusters.Cluster, node, cluster string) error {
	client, err := home.Client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, user.Patience)
	defer cancel()
	return machine.Until(ctx, "node "+node+" to be marked", func() error {
		what, err := unmarked(ctx, client, node, cluster)
		if what != "" {
			return errors.New(what)
		}
		return err
	})
}

// apart gives the test a remote cluster and a node that no other test uses. Behind
// it is the same cluster as always.
func apart(t *testing.T, said spec) *pair {
	t.Helper()
	t.Parallel()
	prepare(t)
	remote := user.NewNamespace(t, user.Cluster(t, "remote"))
	p := &pair{t: t, node: "virtual-" + remote.Name, cluster: remote.Name, remote: remote}
	t.Cleanup(p.wantNoTwins)
	p.declare(said)
	t.Cleanup(p.retract)
	start(t, virtualNode(p.node, p.cluster))
	if err := awaitMarked(t.Context(), user.Cluster(t, "home"), p.node, p.cluster); err != nil {
		t.Fatal(err)
	}
	p.home = user.NewNamespaceNamed(t, user.Cluster(t, "home"), remote.Name)
	return p
}

// declare makes the RemoteCluster of the test, or says something else about it.
func (p *pair) declare(said spec) {
	p.t.Helper()
	if err := putRemoteCluster(p.t.Context(), user.Cluster(p.t, "home"), p.cluster, said); err != nil {
		p.t.Fatal(err)
	}
}

// retract removes it, with the Secret if it has one of its own.
func (p *pair) retract() {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.t.Context()), user.Patience)
	defer cancel()
	home := user.Cluster(p.t, "home")
	if err := errors.Join(deleteRemoteCluster(ctx, home, p.cluster), deleteSecret(ctx, home, p.cluster)); err != nil {
		p.t.Error(err)
	}
}

// start starts another fabric, which ends before the namespaces of the test do.
func start(t *testing.T, options fabric.Options) {
	t.Helper()
	options.Home, options.Remote = user.Cluster(t, "home"), user.Cluster(t, "remote")
	f, err := fabric.Start(context.WithoutCancel(t.Context()), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), user.Patience)
		defer cancel()
		if err := f.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
}

// there makes the scheduler choose the virtual node.
func (p *pair) there(pod *corev1.Pod) {
	pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: p.node}
	pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
}

// pinned has the pod on the virtual node whatever the scheduler would say.
func (p *pair) pinned(pod *corev1.Pod) {
	pod.Spec.NodeName = p.node
	pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
}

// either lets the pod run at home too, if it must, but not on nodes of other tests.
func (p *pair) either(pod *corev1.Pod) {
	var here []string
	for _, node := range p.home.Cluster.Nodes() {
		here = append(here, node.Name)
	}
	preferring([]string{p.node}, here)(pod)
}
