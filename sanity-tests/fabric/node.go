package fabric

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"maps"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/retry"
)

// RemoteAnnotation is on every Node of a fabric and says which cluster is
// behind it.
const RemoteAnnotation = "fabric.storage.test/remote"

const (
	// heartbeat and leaseSeconds are kubelet's.
	heartbeat    = 10 * time.Second
	leaseSeconds = int32(40)
	// retryInterval is how soon a heartbeat that failed is tried again.
	retryInterval = time.Second
	// resync is how often everything is looked at again, whatever watches say.
	resync = 30 * time.Second
)

// nodeKeeper plays the part of kubelet that is about the Node: it makes it,
// makes it again when somebody deletes it, and keeps it ready. Of the Node it
// writes only the status, so that cordons and labels of others stay.
type nodeKeeper struct {
	client   kubernetes.Interface
	options  Options
	progress *log.Logger
	informer cache.SharedIndexInformer
	// version is that of the home API server: kubelets are rarely newer.
	version string
	// wake asks for a heartbeat now.
	wake chan struct{}
}

func newNodeKeeper(client kubernetes.Interface, o Options, progress *log.Logger) *nodeKeeper {
	this := func(list *metav1.ListOptions) {
		list.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, o.Node).String()
	}
	return &nodeKeeper{
		client: client, options: o, progress: progress,
		informer: coreinformers.NewFilteredNodeInformer(client, resync, cache.Indexers{}, this),
		wake:     make(chan struct{}, 1),
	}
}

// adopt takes over the Node that a killed fabric left; it refuses one that is
// not a fabric's.
func (k *nodeKeeper) adopt(ctx context.Context) error {
	version, err := k.client.Discovery().ServerVersion()
	if err != nil {
		return fmt.Errorf("ask cluster %s for its version: %w", k.options.Home.Name(), err)
	}
	k.version = version.GitVersion
	// Kubernetes may write the node at any time.
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error { return k.takeOver(ctx) })
}

func (k *nodeKeeper) takeOver(ctx context.Context) error {
	node, err := k.client.CoreV1().Nodes().Get(ctx, k.options.Node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for the node: %w", err)
	}
	if _, fabrics := node.Annotations[RemoteAnnotation]; !fabrics {
		return fmt.Errorf("cluster %s has a node of that name that is not a fabric's: choose another name", k.options.Home.Name())
	}
	wanted := k.object()
	maps.Copy(node.Labels, wanted.Labels)
	maps.Copy(node.Annotations, wanted.Annotations)
	for _, taint := range wanted.Spec.Taints {
		if !slices.ContainsFunc(node.Spec.Taints, func(has corev1.Taint) bool { return has.MatchTaint(&taint) }) {
			node.Spec.Taints = append(node.Spec.Taints, taint)
		}
	}
	if _, err := k.client.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("take over the node: %w", err)
	}
	return nil
}

func (k *nodeKeeper) start(ctx context.Context, running *sync.WaitGroup) {
	_, _ = k.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, node any) {
			if !ready(node.(*corev1.Node)) {
				k.wakeUp()
			}
		},
		DeleteFunc: func(any) { k.wakeUp() },
	})
	_ = k.informer.SetWatchErrorHandlerWithContext(tell(k.progress, "watch the node"))
	running.Go(func() { k.informer.RunWithContext(ctx) })
	running.Go(func() { k.run(ctx) })
}

func (k *nodeKeeper) wakeUp() {
	select {
	case k.wake <- struct{}{}:
	default: // it is awake already
	}
}

func (k *nodeKeeper) run(ctx context.Context) {
	for ctx.Err() == nil {
		next := heartbeat
		if err := k.beat(ctx); err != nil && ctx.Err() == nil {
			k.progress.Printf("heartbeat: %v", err)
			next = retryInterval
		}
		select {
		case <-ctx.Done():
		case <-k.wake:
		case <-time.After(next):
		}
	}
}

func (k *nodeKeeper) beat(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, heartbeat)
	defer cancel()
	nodes := k.client.CoreV1().Nodes()
	node, err := nodes.Get(ctx, k.options.Node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		k.progress.Printf("making the node in cluster %s", k.options.Home.Name())
		node, err = nodes.Create(ctx, k.object(), metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("make the node: %w", err)
	}
	patch, err := json.Marshal(map[string]any{"status": k.status(node)})
	if err != nil {
		return fmt.Errorf("the node's status: %w", err)
	}
	if _, err := nodes.PatchStatus(ctx, node.Name, patch); err != nil {
		return fmt.Errorf("write the node's status: %w", err)
	}
	return k.renewLease(ctx)
}

func (k *nodeKeeper) object() *corev1.Node {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: k.options.Node,
			Labels: map[string]string{
				corev1.LabelHostname:   k.options.Node,
				corev1.LabelOSStable:   "linux",
				corev1.LabelArchStable: "amd64",
				"kubernetes.io/role":   "agent",
			},
			Annotations: map[string]string{RemoteAnnotation: k.options.Remote.Name()},
		},
		Spec: corev1.NodeSpec{Taints: slices.Clone(k.options.Taints)},
	}
	maps.Copy(node.Labels, k.options.Labels)
	maps.Copy(node.Annotations, k.options.Annotations)
	return node
}

func (k *nodeKeeper) status(node *corev1.Node) corev1.NodeStatus {
	has := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("16"),
		corev1.ResourceMemory: resource.MustParse("32Gi"),
		corev1.ResourcePods:   resource.MustParse("110"),
	}
	return corev1.NodeStatus{
		Capacity: has, Allocatable: has,
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: node.Name}},
		NodeInfo:  corev1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "amd64", KubeletVersion: k.version},
		Conditions: []corev1.NodeCondition{
			healthy(node, corev1.NodeReady, corev1.ConditionTrue),
			healthy(node, corev1.NodeMemoryPressure, corev1.ConditionFalse),
			healthy(node, corev1.NodeDiskPressure, corev1.ConditionFalse),
			healthy(node, corev1.NodePIDPressure, corev1.ConditionFalse),
		},
	}
}

// healthy is the condition as of now; it changed when it was not so before.
func healthy(node *corev1.Node, kind corev1.NodeConditionType, status corev1.ConditionStatus) corev1.NodeCondition {
	now := metav1.Now()
	condition := corev1.NodeCondition{
		Type: kind, Status: status, LastHeartbeatTime: now, LastTransitionTime: now,
		Reason: "FabricRuns", Message: "pods of this node run in another cluster",
	}
	for _, before := range node.Status.Conditions {
		if before.Type == kind && before.Status == status {
			condition.LastTransitionTime = before.LastTransitionTime
		}
	}
	return condition
}

func (k *nodeKeeper) renewLease(ctx context.Context) error {
	leases := k.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	lease, err := leases.Get(ctx, k.options.Node, metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	if missing {
		lease, err = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: k.options.Node}}, nil
	}
	if err != nil {
		return fmt.Errorf("look for the node's lease: %w", err)
	}
	lease.Spec.HolderIdentity = new(k.options.Node)
	lease.Spec.LeaseDurationSeconds = new(leaseSeconds)
	lease.Spec.RenewTime = new(metav1.NowMicro())
	if missing {
		_, err = leases.Create(ctx, lease, metav1.CreateOptions{})
	} else {
		_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("renew the node's lease: %w", err)
	}
	return nil
}

// waitReady waits until the scheduler may use the Node: Kubernetes taints every
// new Node and takes the taint away when it has seen that it is ready.
func (k *nodeKeeper) waitReady(ctx context.Context) error {
	for {
		if found, exists, _ := k.informer.GetStore().GetByKey(k.options.Node); exists {
			node := found.(*corev1.Node)
			notReady := func(taint corev1.Taint) bool { return taint.Key == corev1.TaintNodeNotReady }
			if ready(node) && !slices.ContainsFunc(node.Spec.Taints, notReady) {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the node does not become ready in cluster %s: %w", k.options.Home.Name(), ctx.Err())
		case <-time.After(pollInterval):
		}
	}
}

func ready(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(condition corev1.NodeCondition) bool {
		return condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue
	})
}

func (k *nodeKeeper) remove(ctx context.Context) error {
	err := k.client.CoreV1().Nodes().Delete(ctx, k.options.Node, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete the node: %w", err)
	}
	err = k.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Delete(ctx, k.options.Node, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete the node's lease: %w", err)
	}
	return nil
}
