package clusters

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/components"
	"storage.liqo.io/sanity-tests/images"
	"storage.liqo.io/sanity-tests/machine"
	"storage.liqo.io/sanity-tests/nodes"
)

// startTimeout is the limit for each component to start, on a busy machine with two CPUs.
const startTimeout = 3 * time.Minute

// Up starts a lab, or those parts of it that do not run, and returns when all nodes are ready.
func Up(ctx context.Context, options Options) (*Lab, error) {
	if err := options.complete(); err != nil {
		return nil, err
	}
	if err := machine.Preflight(machine.ThisMachine(ctx)); err != nil {
		return nil, err
	}
	if _, err := wanted(options); err != nil {
		return nil, err
	}
	progress := newProgress(options.Progress)
	bin, err := components.Build(ctx, progress)
	if err != nil {
		return nil, err
	}
	progress.step("programs built")

	unlock, err := machine.Lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	lab, err := wanted(options)
	if err != nil {
		return nil, err
	}
	lab.bin = bin

	if err := lab.prepare(ctx); err != nil {
		return nil, err
	}
	progress.step("namespaces, networks, certificates")
	if err := lab.startAll(ctx, progress); err != nil {
		return nil, err
	}
	progress.step("all nodes ready")
	return lab, nil
}

// wanted returns the lab of the options: the existing one, if it fits.
func wanted(options Options) (*Lab, error) {
	present, err := Load()
	if err == nil {
		return present, present.fits(options.Clusters)
	}
	if !errors.Is(err, ErrNoLab) {
		return nil, err
	}
	ports, err := hostPorts(options.Clusters)
	if err != nil {
		return nil, err
	}
	return newLab(record{Clusters: options.Clusters, Ports: ports}), nil
}

// fits returns an error if the lab has other clusters, nodes or ports. Port 0 fits any port, and no quick nodes any
// number of them.
func (l *Lab) fits(specs []ClusterSpec) error {
	var present []string
	same := len(specs) == len(l.clusters)
	for i, cluster := range l.clusters {
		present = append(present, cluster.spec.String())
		same = same && cluster.Name() == specs[i].Name && len(cluster.nodes) == specs[i].Nodes &&
			(specs[i].Port == 0 || specs[i].Port == cluster.port) &&
			(specs[i].QuickNodes == 0 || specs[i].QuickNodes == cluster.spec.QuickNodes)
	}
	if !same {
		return fmt.Errorf("another lab runs on this machine (%s; wanted: %v): run `make lab-down` first",
			strings.Join(present, ", "), specs)
	}
	return nil
}

// hostPorts checks that ports of the host's loopback are free, or chooses free ones. It keeps all
// listeners open until the end, so that the ports differ.
func hostPorts(specs []ClusterSpec) ([]int, error) {
	var ports []int
	for _, spec := range specs {
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", spec.Port))
		if err != nil {
			return nil, fmt.Errorf("cluster %s: port %d of 127.0.0.1 is taken: %w", spec.Name, spec.Port, err)
		}
		defer listener.Close()
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// prepare creates everything except processes.
func (l *Lab) prepare(ctx context.Context) error {
	if err := machine.Prepare(); err != nil {
		return err
	}
	if err := l.save(); err != nil {
		return err
	}
	for _, cluster := range l.clusters {
		if err := cluster.writeConfigs(); err != nil {
			return err
		}
		if err := cluster.issueCertificates(); err != nil {
			return err
		}
		if err := cluster.ensureNodes(); err != nil {
			return err
		}
		if err := cluster.ensureNetwork(ctx); err != nil {
			return err
		}
	}
	for _, cluster := range l.clusters[1:] {
		if err := cluster.ensureLink(ctx, l.clusters[0]); err != nil {
			return err
		}
	}
	return l.writeKubectls()
}

// ensureNodes creates the nodes' namespaces, configuration and credentials.
func (c *Cluster) ensureNodes() error {
	for _, node := range c.nodes {
		if err := node.Ensure(string(c.lab.bin), c.SharedDir()); err != nil {
			return err
		}
	}
	return c.issueNodeCertificates()
}

// writeKubectls writes a kubectl wrapper for each cluster.
func (l *Lab) writeKubectls() error {
	for _, cluster := range l.clusters {
		script := fmt.Sprintf("#!/bin/sh\nKUBECONFIG=%s exec %s \"$@\"\n", cluster.Kubeconfig(), l.bin.Path("kubectl"))
		if err := os.MkdirAll(machine.Path("bin"), 0o755); err != nil {
			return err
		}
		if err := machine.WriteFile(cluster.Kubectl(), []byte(script), 0o755); err != nil {
			return fmt.Errorf("write the kubectl of %s: %w", cluster.Name(), err)
		}
	}
	return nil
}

// Kubectl returns the path of a kubectl for this cluster.
func (c *Cluster) Kubectl() string { return machine.Path("bin", "kubectl-"+c.Name()) }

// startAll starts control planes and container runtimes in parallel, and kubelets when both are
// healthy.
func (l *Lab) startAll(ctx context.Context, progress *progress) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return l.startRelays(ctx) })

	runtimes := make(chan struct{})
	group.Go(func() error {
		if err := l.startRuntimes(ctx); err != nil {
			return err
		}
		progress.step("container runtimes answer")
		close(runtimes)
		return l.importStock(ctx, progress)
	})
	for _, cluster := range l.clusters {
		group.Go(func() error {
			if err := cluster.startControlPlane(ctx, progress); err != nil {
				return err
			}
			select {
			case <-runtimes:
				return cluster.startKubelets(ctx, progress)
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	}
	return group.Wait()
}

func (l *Lab) startRuntimes(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, cluster := range l.clusters {
		for _, node := range cluster.nodes {
			group.Go(func() error { return cluster.startContainerd(ctx, node) })
		}
	}
	return group.Wait()
}

func (c *Cluster) startControlPlane(ctx context.Context, progress *progress) error {
	for _, component := range []string{etcd, apiServer} {
		if err := c.ensureComponent(ctx, component); err != nil {
			return err
		}
	}
	progress.step(c.Name() + ": API server answers")
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.ensureComponent(ctx, controllerManager) })
	group.Go(func() error { return c.ensureComponent(ctx, scheduler) })
	group.Go(func() error {
		ctx, cancel := context.WithTimeout(ctx, startTimeout)
		defer cancel()
		return machine.Until(ctx, "the first objects in "+c.Name(), func() error {
			return errors.Join(c.allowKubeletAccess(ctx), c.createDNSObjects(ctx))
		})
	})
	group.Go(func() error { return c.ensureComponent(ctx, coreDNS) })
	return group.Wait()
}

// startContainerd starts a node's containerd and imports the image of pod sandboxes, which kubelet's
// first pods need.
func (c *Cluster) startContainerd(ctx context.Context, node *nodes.Node) error {
	if err := c.ensureComponent(ctx, "containerd@"+node.Name); err != nil {
		return err
	}
	if nodes.HasImages(ctx, string(c.lab.bin), []*nodes.Node{node}, images.PauseName) {
		return nil
	}
	return nodes.Import(ctx, string(c.lab.bin), []*nodes.Node{node}, images.Pause())
}

func (c *Cluster) startKubelets(ctx context.Context, progress *progress) error {
	group, inGroup := errgroup.WithContext(ctx)
	for _, node := range c.nodes {
		group.Go(func() error { return c.ensureComponent(inGroup, "kubelet@"+node.Name) })
		group.Go(func() error { return c.ensureComponent(inGroup, kubeProxy+"@"+node.Name) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := machine.Until(ctx, "the nodes of "+c.Name(), func() error { return c.nodesReady(ctx) }); err != nil {
		return fmt.Errorf("%w\nlast lines of a kubelet:\n%s", err, machine.LastLines(c.nodes[0].Kubelet(), 15))
	}
	progress.step(c.Name() + ": nodes ready")
	return nil
}

// nodesReady succeeds when pods can run: the nodes are ready and have no taints, and the default
// service account exists.
func (c *Cluster) nodesReady(ctx context.Context) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	for _, node := range c.nodes {
		object, err := client.CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		ready := false
		for _, condition := range object.Status.Conditions {
			if condition.Type == corev1.NodeReady {
				ready = condition.Status == corev1.ConditionTrue
				err = fmt.Errorf("node %s: %s", node.Name, condition.Message)
			}
		}
		if !ready {
			return errors.Join(fmt.Errorf("node %s is not ready", node.Name), err)
		}
		if len(object.Spec.Taints) > 0 {
			return fmt.Errorf("node %s still has the taint %s", node.Name, object.Spec.Taints[0].Key)
		}
	}
	_, err = client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
	return err
}

// importStock imports the stock images into the nodes that do not have them.
func (l *Lab) importStock(ctx context.Context, progress *progress) error {
	stock, err := l.stockImages(ctx)
	if err != nil {
		return err
	}
	names := make([]string, len(stock))
	for i, image := range stock {
		names[i] = image.Name
	}
	var missing []*nodes.Node
	for _, cluster := range l.clusters {
		for _, node := range cluster.nodes {
			if !nodes.HasImages(ctx, string(l.bin), []*nodes.Node{node}, names...) {
				missing = append(missing, node)
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if err := nodes.Import(ctx, string(l.bin), missing, stock...); err != nil {
		return err
	}
	progress.step(fmt.Sprintf("%d images imported into %d nodes", len(stock), len(missing)))
	return nil
}

// Import imports images into all nodes of the cluster, and replaces those of the same name.
func (c *Cluster) Import(ctx context.Context, imported ...*images.Image) error {
	return nodes.Import(ctx, string(c.lab.bin), c.nodes, imported...)
}

// ImportMissing imports an image, whose name is a hash of its content, into those nodes of the
// cluster that do not have it, and returns their number.
func (c *Cluster) ImportMissing(ctx context.Context, image *images.Image) (imported int, err error) {
	return nodes.ImportMissing(ctx, string(c.lab.bin), c.nodes, image)
}

// RemoveOtherTags removes images of the same repository with other tags.
func (c *Cluster) RemoveOtherTags(ctx context.Context, image string) error {
	return nodes.RemoveOtherTags(ctx, string(c.lab.bin), c.nodes, image)
}

// progress writes the steps and their times.
type progress struct {
	mu    sync.Mutex
	out   io.Writer
	start time.Time
}

func newProgress(out io.Writer) *progress { return &progress{out: out, start: time.Now()} }

func (p *progress) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(text)
}

func (p *progress) step(what string) {
	fmt.Fprintf(p, "%6.1fs  %s\n", time.Since(p.start).Seconds(), what)
}
