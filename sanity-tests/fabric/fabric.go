// Package fabric is a small fabric that does for pods what Liqo and Kosmos do, between two clusters
// of the lab. It maintains a virtual node in the home cluster, and runs the pods bound to that node
// in the remote cluster.
//
// It copies pods with their volumes, but no ConfigMap or Secret and, unless it simulates Kosmos, no
// claim: those must exist in the remote namespace under the same name. It does not support logs,
// exec, networks or later changes of a pod's spec.
//
// It runs in goroutines of the process that calls Start.
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

// UserAgent is the fabric's user agent in the audit logs of both clusters.
const UserAgent = "reflecting-fabric"

const (
	// startLimit is the timeout for a Node to become ready.
	startLimit = 2 * time.Minute
	// pollInterval is for waits without a watch.
	pollInterval = 200 * time.Millisecond
)

// Options of a fabric. Plain, Liqo and Kosmos set those of the Node.
type Options struct {
	// Home is where pods are created, Remote where they run.
	Home, Remote *clusters.Cluster
	// Node is the name of the virtual node.
	Node string
	// Labels, Annotations and Taints of the Node. They are written once, so that others may change
	// them.
	Labels, Annotations map[string]string
	Taints              []corev1.Taint
	// Namespace returns the remote namespace of a home namespace; nil means the same name. It is
	// called repeatedly and by several goroutines. Pods of a namespace that is not mapped stay
	// Pending until it is.
	Namespace func(home string) (remote string, mapped bool)
	// KosmosCluster makes the fabric handle claims as Kosmos does for this cluster; empty means that
	// it ignores claims.
	KosmosCluster string
	// RemoteNode is the one node of the remote cluster that the virtual node represents; its pods
	// are bound there without a scheduler. Empty means the whole cluster.
	RemoteNode string
	// NoNamespaces keeps the fabric from creating remote namespaces. It never deletes those that it
	// created, because that would delete data.
	NoNamespaces bool
	// Progress gets a line per action; nil discards them.
	Progress io.Writer
}

func (o *Options) complete() error {
	if o.Home == nil || o.Remote == nil || o.Node == "" {
		return errors.New("a fabric needs a home cluster, a remote cluster and a node name")
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
	node         *nodeController
	pods         *reflector
	claims       *kosmosClaims

	cancel  context.CancelFunc
	running sync.WaitGroup

	stopping sync.Mutex
	stopped  bool
}

// Start creates the Node and returns when pods can be scheduled to it. When ctx is done, the fabric
// stops as if it were killed: nothing is deleted, and the next Start of the same node continues.
// Stop cleans up.
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
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), startLimit)
		defer cancel()
		return nil, errors.Join(fmt.Errorf("fabric for node %s: %w", o.Node, err), f.Stop(cleanup))
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
		node: newNodeController(home, o, progress),
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

// Stop ends the goroutines and deletes the remote pods, the Node, its Lease and, as Kubernetes does
// some time after the deletion of a Node, the home pods bound to it. After an error, the next Stop
// tries again.
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

// Remove is Stop for a fabric of a process that was killed.
func Remove(ctx context.Context, o Options) error {
	f, err := newFabric(o)
	if err != nil {
		return fmt.Errorf("fabric for node %s: %w", o.Node, err)
	}
	f.cancel = func() {} // it has no goroutines in this process
	return f.Stop(ctx)
}

// removeRemotePods comes before the Node: a home pod must not be deleted while its containers run.
func (f *Fabric) removeRemotePods(ctx context.Context) error {
	mine := metav1.ListOptions{LabelSelector: f.pods.selector()}
	return deleteAll(ctx, f.remote, mine, metav1.DeleteOptions{})
}

func (f *Fabric) removeHomePods(ctx context.Context) error {
	bound := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", f.node.options.Node).String()}
	return deleteAll(ctx, f.home, bound, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
}

// deleteAll deletes pods and waits until they are deleted.
func deleteAll(ctx context.Context, client kubernetes.Interface, list metav1.ListOptions, options metav1.DeleteOptions) error {
	for {
		pods, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, list)
		if err != nil {
			return fmt.Errorf("list pods: %w", err)
		}
		if len(pods.Items) == 0 {
			return nil
		}
		for _, pod := range pods.Items {
			if pod.DeletionTimestamp != nil && options.GracePeriodSeconds == nil {
				continue
			}
			err := client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, options)
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("delete pod %s/%s: %w", pod.Namespace, pod.Name, err)
			}
		}
		first := pods.Items[0]
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d pods are not deleted, pod %s/%s is one: %w",
				len(pods.Items), first.Namespace, first.Name, ctx.Err())
		case <-time.After(pollInterval):
		}
	}
}
