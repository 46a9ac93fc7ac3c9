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

// RemoteAnnotation is on every Node of a fabric, with the name of its remote cluster.
const RemoteAnnotation = "fabric.storage.test/remote"

const (
	// heartbeat and leaseSeconds are kubelet's.
	heartbeat    = 10 * time.Second
	leaseSeconds = int32(40)
	// retryInterval is for failed heartbeats.
	retryInterval = time.Second
	// resync is the resync period of informers.
	resync = 30 * time.Second
)

// nodeController maintains the Node like kubelet: it creates it, also after a deletion, and keeps it
// ready. It updates only the status, so that others can cordon and label the Node.
type nodeController struct {
	client   kubernetes.Interface
	options  Options
	progress *log.Logger
	informer cache.SharedIndexInformer
	// version of the home API server, used as that of the kubelet.
	version string
	// trigger causes a heartbeat.
	trigger chan struct{}
}

func newNodeController(client kubernetes.Interface, o Options, progress *log.Logger) *nodeController {
	this := func(list *metav1.ListOptions) {
		list.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, o.Node).String()
	}
	return &nodeController{
		client: client, options: o, progress: progress,
		informer: coreinformers.NewFilteredNodeInformer(client, resync, cache.Indexers{}, this),
		trigger:  make(chan struct{}, 1),
	}
}

// adopt adopts the Node of a killed fabric, and fails if the Node is not a fabric's.
func (k *nodeController) adopt(ctx context.Context) error {
	version, err := k.client.Discovery().ServerVersion()
	if err != nil {
		return fmt.Errorf("get the version of cluster %s: %w", k.options.Home.Name(), err)
	}
	k.version = version.GitVersion
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error { return k.update(ctx) })
}

func (k *nodeController) update(ctx context.Context) error {
	node, err := k.client.CoreV1().Nodes().Get(ctx, k.options.Node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get the node: %w", err)
	}
	if _, ours := node.Annotations[RemoteAnnotation]; !ours {
		return fmt.Errorf("cluster %s has a node of that name that is not a fabric's: choose another name", k.options.Home.Name())
	}
	wanted := k.object()
	maps.Copy(node.Labels, wanted.Labels)
	maps.Copy(node.Annotations, wanted.Annotations)
	for _, taint := range wanted.Spec.Taints {
		if !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&taint) }) {
			node.Spec.Taints = append(node.Spec.Taints, taint)
		}
	}
	if _, err := k.client.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update the node: %w", err)
	}
	return nil
}

func (k *nodeController) start(ctx context.Context, running *sync.WaitGroup) {
	_, _ = k.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, node any) {
			if !ready(node.(*corev1.Node)) {
				k.triggerHeartbeat()
			}
		},
		DeleteFunc: func(any) { k.triggerHeartbeat() },
	})
	_ = k.informer.SetWatchErrorHandlerWithContext(logWatchError(k.progress, "watch the node"))
	running.Go(func() { k.informer.RunWithContext(ctx) })
	running.Go(func() { k.run(ctx) })
}

func (k *nodeController) triggerHeartbeat() {
	select {
	case k.trigger <- struct{}{}:
	default: // one is pending
	}
}

func (k *nodeController) run(ctx context.Context) {
	for ctx.Err() == nil {
		next := heartbeat
		if err := k.sendHeartbeat(ctx); err != nil && ctx.Err() == nil {
			k.progress.Printf("heartbeat: %v", err)
			next = retryInterval
		}
		select {
		case <-ctx.Done():
		case <-k.trigger:
		case <-time.After(next):
		}
	}
}

func (k *nodeController) sendHeartbeat(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, heartbeat)
	defer cancel()
	nodes := k.client.CoreV1().Nodes()
	node, err := nodes.Get(ctx, k.options.Node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		k.progress.Printf("creating the node in cluster %s", k.options.Home.Name())
		node, err = nodes.Create(ctx, k.object(), metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("create the node: %w", err)
	}
	patch, err := json.Marshal(map[string]any{"status": k.status(node)})
	if err != nil {
		return fmt.Errorf("encode the node's status: %w", err)
	}
	if _, err := nodes.PatchStatus(ctx, node.Name, patch); err != nil {
		return fmt.Errorf("write the node's status: %w", err)
	}
	return k.renewLease(ctx)
}

func (k *nodeController) object() *corev1.Node {
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

func (k *nodeController) status(node *corev1.Node) corev1.NodeStatus {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("16"),
		corev1.ResourceMemory: resource.MustParse("32Gi"),
		corev1.ResourcePods:   resource.MustParse("110"),
	}
	return corev1.NodeStatus{
		Capacity: capacity, Allocatable: capacity,
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

// healthy returns a condition with this status, and keeps its transition time if it had that status.
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

func (k *nodeController) renewLease(ctx context.Context) error {
	leases := k.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	lease, err := leases.Get(ctx, k.options.Node, metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	if missing {
		lease, err = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: k.options.Node}}, nil
	}
	if err != nil {
		return fmt.Errorf("get the node's lease: %w", err)
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

// waitReady waits until the scheduler can use the Node: Kubernetes taints every new Node and removes
// the taint when it is ready.
func (k *nodeController) waitReady(ctx context.Context) error {
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

func (k *nodeController) remove(ctx context.Context) error {
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
