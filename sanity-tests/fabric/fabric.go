// Package fabric is a small reflecting fabric: what Liqo and Kosmos do for
// pods, between two clusters of the lab. It keeps a virtual node in the home
// cluster, and pods bound to that node run in the remote cluster.
//
// It copies pods with their volumes verbatim and never makes a ConfigMap or a
// Secret, nor, unless it plays Kosmos, a claim: what a pod names must be there
// under the same name in the remote namespace. It does not carry logs, exec,
// networks or later changes of a pod's spec.
//
// Everything runs as goroutines of the process that calls Start.
package fabric

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"storage.liqo.io/sanity-tests/clusters"
)

// UserAgent is what the audit logs of both clusters call the fabric.
const UserAgent = "reflecting-fabric"

const (
	// startLimit is how long a Node may take to become ready.
	startLimit = 2 * time.Minute
	// pollInterval is for the few waits that no watch ends.
	pollInterval = 200 * time.Millisecond
)

// Options say which pods run where. Plain, Liqo and Kosmos fill in the Node.
type Options struct {
	// Home is where pods are made, Remote where they run.
	Home, Remote *clusters.Cluster
	// Node is the name of the virtual node.
	Node string
	// Labels, Annotations and Taints mark the Node as its fabric does. They are
	// written once: what others change on the Node is left alone.
	Labels, Annotations map[string]string
	Taints              []corev1.Taint
	// Namespace is the remote namespace of a home namespace; nil means the same
	// name. It is asked again and again: pods of a namespace that is not mapped
	// stay Pending until it is. It is called by several goroutines.
	Namespace func(home string) (remote string, mapped bool)
	// KosmosCluster has claims treated as Kosmos treats those of this cluster; empty means that
	// they are left alone.
	KosmosCluster string
	// RemoteNode is the one node of the remote cluster that the virtual node represents; its pods
	// are bound there without a scheduler. Empty means the whole cluster.
	RemoteNode string
	// NoNamespaces leaves making remote namespaces to somebody else. Those the
	// fabric makes stay for ever, because deleting one deletes data.
	NoNamespaces bool
	// Progress gets a line for each thing done; nil means nobody listens.
	Progress io.Writer
}

func (o *Options) complete() error {
	if o.Home == nil || o.Remote == nil || o.Node == "" {
		return errors.New("a fabric needs a home cluster, a remote cluster and the name of a node")
	}
	if o.Namespace == nil {
		o.Namespace = func(home string) (string, bool) { return home, true }
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	return nil
}

// Fabric is one virtual node and the pods on it.
type Fabric struct {
	home, remote kubernetes.Interface
	node         *nodeKeeper
	pods         *reflector
	claims       *kosmosClaims

	cancel  context.CancelFunc
	running sync.WaitGroup

	stopping sync.Mutex
	stopped  bool
}

// Start makes the Node and returns when pods can be scheduled to it. When ctx
// ends the fabric ends as if it were killed: everything stays as it is, and the
// next Start of the same node carries on. Stop is the orderly end.
func Start(ctx context.Context, o Options) (*Fabric, error) {
	f, err := newFabric(o)
	if err != nil {
		return nil, fmt.Errorf("fabric for node %s: %w", o.Node, err)
	}
	if err := f.node.adopt(ctx); err != nil {
		return nil, fmt.Errorf("fabric for node %s: %w", o.Node, err)
	}
	ctx, f.cancel = context.WithCancel(ctx)
	f.node.start(ctx, &f.running)
	f.pods.start(ctx, &f.running)
	if f.claims != nil {
		f.claims.start(ctx, &f.running)
	}

	starting, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if err := errors.Join(f.node.waitReady(starting), f.pods.waitSynced(starting)); err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), startLimit)
		defer cancel()
		return nil, errors.Join(fmt.Errorf("fabric for node %s: %w", o.Node, err), f.Stop(undo))
	}
	return f, nil
}

func newFabric(o Options) (*Fabric, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	home, err := connect(o.Home)
	if err != nil {
		return nil, err
	}
	remote, err := connect(o.Remote)
	if err != nil {
		return nil, err
	}
	progress := log.New(o.Progress, "fabric "+o.Node+": ", 0)
	f := &Fabric{
		home: home, remote: remote,
		node: newNodeKeeper(home, o, progress),
		pods: newReflector(home, remote, o, progress),
	}
	if o.KosmosCluster != "" {
		f.claims = newKosmosClaims(home, remote, o.KosmosCluster, progress)
		f.pods.claims = f.claims
	}
	return f, nil
}

func connect(cluster *clusters.Cluster) (kubernetes.Interface, error) {
	config, err := cluster.Config()
	if err != nil {
		return nil, err
	}
	config.UserAgent = UserAgent
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("access to cluster %s: %w", cluster.Name(), err)
	}
	return client, nil
}

// Stop ends the goroutines, then deletes the pods they made, the Node, its
// lease and, as Kubernetes does some time after a Node is gone, the home pods
// that were bound to it. What failed is tried again by the next Stop.
func (f *Fabric) Stop(ctx context.Context) error {
	f.stopping.Lock()
	defer f.stopping.Unlock()
	if f.stopped {
		return nil
	}
	f.cancel()
	f.running.Wait()
	for _, step := range []func(context.Context) error{f.removeRemotePods, f.node.remove, f.removeHomePods} {
		if err := step(ctx); err != nil {
			return fmt.Errorf("stop the fabric for node %s: %w", f.node.options.Node, err)
		}
	}
	f.stopped = true
	return nil
}

// Remove does for the fabric of a process that was killed what Stop would have done.
func Remove(ctx context.Context, o Options) error {
	f, err := newFabric(o)
	if err != nil {
		return fmt.Errorf("fabric for node %s: %w", o.Node, err)
	}
	f.cancel = func() {} // nothing of it runs here
	return f.Stop(ctx)
}

// removeRemotePods goes before the Node: a home pod must not look gone while
// its containers run.
func (f *Fabric) removeRemotePods(ctx context.Context) error {
	mine := metav1.ListOptions{LabelSelector: f.pods.selector()}
	return deleteAll(ctx, f.remote, mine, metav1.DeleteOptions{})
}

func (f *Fabric) removeHomePods(ctx context.Context) error {
	bound := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", f.node.options.Node).String()}
	return deleteAll(ctx, f.home, bound, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
}

// deleteAll deletes pods and waits until they are gone.
func deleteAll(ctx context.Context, client kubernetes.Interface, which metav1.ListOptions, how metav1.DeleteOptions) error {
	for {
		pods, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, which)
		if err != nil {
			return fmt.Errorf("list pods: %w", err)
		}
		if len(pods.Items) == 0 {
			return nil
		}
		for _, pod := range pods.Items {
			if pod.DeletionTimestamp != nil && how.GracePeriodSeconds == nil {
				continue
			}
			err := client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, how)
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("delete pod %s/%s: %w", pod.Namespace, pod.Name, err)
			}
		}
		first := pods.Items[0]
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d pods do not go away, pod %s/%s is one: %w",
				len(pods.Items), first.Namespace, first.Name, ctx.Err())
		case <-time.After(pollInterval):
		}
	}
}
