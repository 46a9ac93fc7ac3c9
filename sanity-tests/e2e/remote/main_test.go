// Package remote tests volumes in remote clusters: twins of claims whose pods run on virtual nodes, moves,
// and the declaration of clusters. e2e/driver tests volumes at home, e2e/fabric the fabric alone.
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

// Parallel tests start in the order of their files' names: files with long tests have names that come
// first, so that none of them runs alone at the end of the suite.
func TestMain(m *testing.M) {
	objectsCommand, errObjectsCommand = user.BeforeTests("build the command that creates objects of fabrics", buildObjectsCommand)
	user.MainWithDriver(m, removeFabrics, shared.remove)
}

const (
	// sharedName is the name of the RemoteCluster that most tests use, and of its Secret.
	sharedName = "remote"
	// sharedNode is its virtual node.
	sharedNode = "virtual-remote"
	// clusterLabel selects the nodes of the RemoteClusters of these tests.
	clusterLabel = "e2e.storage.test/cluster"
)

// shared is created by the first test that needs it, and removed after the last.
var shared setup

type setup struct {
	once       sync.Once
	err        error
	home       *clusters.Cluster
	kubeconfig []byte
	fabric     *fabric.Fabric
}

// newPair creates a namespace of the same name in both clusters, for a parallel test with the shared
// RemoteCluster.
func newPair(t *testing.T) *pair {
	t.Helper()
	t.Parallel()
	return newSerialPair(t)
}

// newSerialPair is newPair for tests that must not run in parallel.
func newSerialPair(t *testing.T) *pair {
	t.Helper()
	ensureShared(t)
	p := newRemoteNamespace(t)
	p.node, p.cluster = sharedNode, sharedName
	p.createHomeNamespace()
	return p
}

func ensureShared(t *testing.T) {
	t.Helper()
	home, remote := user.Cluster(t, "home"), user.Cluster(t, "remote")
	shared.once.Do(func() { shared.err = shared.create(context.WithoutCancel(t.Context()), home, remote) })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
}

func (s *setup) create(ctx context.Context, home, remote *clusters.Cluster) error {
	s.home = home
	client, err := home.Client()
	if err != nil {
		return err
	}
	if err := createTenantNamespaces(ctx, client); err != nil {
		return err
	}
	if err := driver.Install(ctx, home, driver.Options{Progress: os.Stderr, Values: sharedValues()}); err != nil {
		return err
	}
	// Movers run in the remote cluster, which has no driver and therefore no image of it.
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
	return waitMarked(ctx, home, sharedNode, sharedName)
}

// sharedValues are the chart values of these tests.
func sharedValues() chart.Values {
	return chart.Values{
		"liqo":                      chart.Values{"tenantNamespaces": tenantNamespaces()},
		"allowedRealStorageClasses": []string{annotatedClass, namedClass, movedClass},
		"carriedAnnotations":        []string{"cost-center"},
	}
}

// createTenantNamespaces creates Liqo's tenant namespaces, and waits while those of an earlier run are
// terminating.
func createTenantNamespaces(ctx context.Context, client kubernetes.Interface) error {
	ctx, cancel := context.WithTimeout(ctx, user.Timeout)
	defer cancel()
	for _, name := range tenantNamespaces() {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		err := machine.Until(ctx, "namespace "+name+" to be created", func() error {
			_, err := client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
			if !apierrors.IsAlreadyExists(err) {
				return err
			}
			found, err := client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
			if err == nil && found.DeletionTimestamp != nil {
				return errors.New("an older one is terminating")
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

// virtualNode is a node that the RemoteCluster of that name selects, without remote namespaces.
func virtualNode(node, cluster string) fabric.Options {
	options := fabric.Plain(node)
	options.Labels[clusterLabel] = cluster
	options.NoNamespaces = true
	return options
}

// waitMarked waits until a virtual node has the labels and the CSINode that the scheduler and csi-provisioner need.
func waitMarked(ctx context.Context, home *clusters.Cluster, node, cluster string) error {
	client, err := home.Client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, user.Timeout)
	defer cancel()
	return machine.Until(ctx, "node "+node+" to be marked", func() error {
		missing, err := missingMarks(ctx, client, node, cluster)
		if missing != "" {
			return errors.New(missing)
		}
		return err
	})
}

// newDedicatedPair is newPair with a RemoteCluster and a virtual node of its own. The cluster behind them
// is the shared one.
func newDedicatedPair(t *testing.T, more spec) *pair {
	t.Helper()
	t.Parallel()
	ensureShared(t)
	p := newRemoteNamespace(t)
	p.declare(more)
	t.Cleanup(p.undeclare)
	p.startNode()
	p.createHomeNamespace()
	return p
}

// newRemoteNamespace creates a namespace in the remote cluster, with names for a node and a RemoteCluster.
func newRemoteNamespace(t *testing.T) *pair {
	t.Helper()
	remote := user.NewNamespace(t, user.Cluster(t, "remote"))
	p := &pair{t: t, node: "virtual-" + remote.Name, cluster: remote.Name, remote: remote}
	t.Cleanup(p.wantNoTwins)
	return p
}

// createHomeNamespace creates it last, so that it is deleted while its node and its cluster still exist.
func (p *pair) createHomeNamespace() {
	p.t.Helper()
	p.home = user.NewNamespaceNamed(p.t, user.Cluster(p.t, "home"), p.remote.Name)
}

// startNode starts a fabric with the pair's virtual node, and waits until it can be used.
func (p *pair) startNode() {
	p.t.Helper()
	startFabric(p.t, virtualNode(p.node, p.cluster))
	p.waitMarked()
}

func (p *pair) waitMarked() {
	p.t.Helper()
	if err := waitMarked(p.t.Context(), user.Cluster(p.t, "home"), p.node, p.cluster); err != nil {
		p.t.Fatal(err)
	}
}

// declare creates or updates the pair's RemoteCluster.
func (p *pair) declare(more spec) {
	p.t.Helper()
	if err := putRemoteCluster(p.t.Context(), user.Cluster(p.t, "home"), p.cluster, more); err != nil {
		p.t.Fatal(err)
	}
}

// undeclare deletes the RemoteCluster, and its Secret if it has one of its own.
func (p *pair) undeclare() {
	p.t.Helper()
	ctx, home := user.CleanupContext(p.t), user.Cluster(p.t, "home")
	if err := errors.Join(deleteRemoteCluster(ctx, home, p.cluster), deleteSecret(ctx, home, p.cluster)); err != nil {
		p.t.Error(err)
	}
}

// startFabric starts a fabric. It is stopped before earlier namespaces of the test are deleted.
func startFabric(t *testing.T, options fabric.Options) {
	t.Helper()
	options.Home, options.Remote = user.Cluster(t, "home"), user.Cluster(t, "remote")
	f, err := fabric.Start(context.WithoutCancel(t.Context()), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Stop(user.CleanupContext(t)); err != nil {
			t.Error(err)
		}
	})
}

// onVirtualNode schedules a pod on the virtual node.
func (p *pair) onVirtualNode(pod *corev1.Pod) {
	pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: p.node}
	pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
}

// startPod creates a claim and a pod with it on the virtual node, and waits until the pod is ready.
func (p *pair) startPod(name, claim, class string) {
	p.t.Helper()
	p.home.Claim(claim, class, "64Mi")
	p.home.Pod(name, claim, p.onVirtualNode)
	p.home.WaitReady(name)
}

// pinned puts a pod on the virtual node without the scheduler.
func (p *pair) pinned(pod *corev1.Pod) {
	pod.Spec.NodeName = p.node
	pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
}

// preferRemote prefers the virtual node, and allows the real ones, but no virtual nodes of other tests.
func (p *pair) preferRemote(pod *corev1.Pod) {
	var real []string
	for _, node := range p.home.Cluster.Nodes() {
		real = append(real, node.Name)
	}
	preferNodes([]string{p.node}, real)(pod)
}
