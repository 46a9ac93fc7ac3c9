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
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

const (
	workers = 4
	// stepLimit is the timeout of one reconciliation.
	stepLimit = 30 * time.Second
	// obstacleInterval is how soon a pod that cannot run is reconciled again, if no watch triggers it.
	obstacleInterval = 2 * time.Second
)

// Reasons why a home pod that was not copied is Pending.
const (
	ReasonNamespaceNotMapped = "NamespaceNotMapped"
	ReasonNamespaceMissing   = "RemoteNamespaceMissing"
	ReasonPodExists          = "RemotePodExists"
	ReasonRefused            = "RemoteRefused"
	ReasonUnreachable        = "RemoteUnreachable"
)

const byHomePod = "home pod"

// reflector runs home pods of the virtual node in the remote cluster. Its queue has the names of home
// pods, also for events of remote pods.
type reflector struct {
	home, remote         kubernetes.Interface
	options              Options
	progress             *log.Logger
	homePods, remotePods cache.SharedIndexInformer
	queue                workqueue.TypedRateLimitingInterface[cache.ObjectName]
	// claims is nil unless the fabric simulates Kosmos.
	claims *kosmosClaims
}

func newReflector(home, remote kubernetes.Interface, o Options, progress *log.Logger) *reflector {
	r := &reflector{home: home, remote: remote, options: o, progress: progress}
	bound := func(list *metav1.ListOptions) {
		list.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", o.Node).String()
	}
	mine := func(list *metav1.ListOptions) { list.LabelSelector = r.selector() }
	r.homePods = coreinformers.NewFilteredPodInformer(home, metav1.NamespaceAll, resync, cache.Indexers{}, bound)
	r.remotePods = coreinformers.NewFilteredPodInformer(remote, metav1.NamespaceAll, resync,
		cache.Indexers{byHomePod: func(pod any) ([]string, error) {
			return []string{pod.(*corev1.Pod).Annotations[PodAnnotation]}, nil
		}}, mine)
	r.queue = workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](200*time.Millisecond, 10*time.Second))
	return r
}

// selector matches all remote pods of this fabric.
func (r *reflector) selector() string { return labels.SelectorFromSet(marks(r.options)).String() }

func (r *reflector) start(ctx context.Context, running *sync.WaitGroup) {
	_, _ = r.homePods.AddEventHandler(handle(func(pod any) {
		if name, err := cache.DeletionHandlingObjectToName(pod); err == nil {
			r.queue.Add(name)
		}
	}))
	_, _ = r.remotePods.AddEventHandler(handle(func(object any) {
		if last, unknown := object.(cache.DeletedFinalStateUnknown); unknown {
			object = last.Obj
		}
		pod, known := object.(*corev1.Pod)
		if !known {
			return
		}
		if name, err := cache.ParseObjectName(pod.Annotations[PodAnnotation]); err == nil {
			r.queue.Add(name)
		}
	}))
	_ = r.homePods.SetWatchErrorHandlerWithContext(logWatchError(r.progress, "watch pods of cluster "+r.options.Home.Name()))
	_ = r.remotePods.SetWatchErrorHandlerWithContext(logWatchError(r.progress, "watch pods of cluster "+r.options.Remote.Name()))
	running.Go(func() { r.homePods.RunWithContext(ctx) })
	running.Go(func() { r.remotePods.RunWithContext(ctx) })
	running.Go(func() { <-ctx.Done(); r.queue.ShutDown() })
	for range workers {
		running.Go(func() {
			// With one cache only, it would delete or copy too much.
			if cache.WaitForCacheSync(ctx.Done(), r.homePods.HasSynced, r.remotePods.HasSynced) {
				r.work(ctx)
			}
		})
	}
}

func handle(event func(any)) cache.ResourceEventHandlerFuncs {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    event,
		UpdateFunc: func(_, object any) { event(object) },
		DeleteFunc: event,
	}
}

// logWatchError logs why a watch ended; informers start a new one.
func logWatchError(progress *log.Logger, what string) cache.WatchErrorHandlerWithContext {
	return func(ctx context.Context, _ *cache.Reflector, err error) {
		if ctx.Err() == nil && !errors.Is(err, io.EOF) && !apierrors.IsResourceExpired(err) {
			progress.Printf("%s: %v", what, err)
		}
	}
}

func (r *reflector) waitSynced(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), r.homePods.HasSynced, r.remotePods.HasSynced) {
		return fmt.Errorf("list the pods of clusters %s and %s: %w", r.options.Home.Name(), r.options.Remote.Name(), ctx.Err())
	}
	return nil
}

func (r *reflector) work(ctx context.Context) {
	for {
		name, ended := r.queue.Get()
		if ended {
			return
		}
		step, cancel := context.WithTimeout(ctx, stepLimit)
		err := r.reconcile(step, name)
		cancel()
		if err == nil {
			r.queue.Forget(name)
		} else {
			if ctx.Err() == nil && !apierrors.IsConflict(err) {
				r.progress.Printf("pod %s: %v", name, err)
			}
			r.queue.AddRateLimited(name)
		}
		r.queue.Done(name)
	}
}

// reconcile reconciles a home pod and its copies, of which there should be one.
func (r *reflector) reconcile(ctx context.Context, name cache.ObjectName) error {
	pod := r.homePod(name)
	remote, others := r.copiesOf(name, pod)
	for _, other := range others {
		if err := r.deleteRemote(ctx, other, nil); err != nil {
			return err
		}
	}
	switch {
	case pod == nil:
		return nil
	case pod.DeletionTimestamp != nil:
		return r.finish(ctx, pod, remote)
	case ofDaemonSet(pod):
		return nil // DaemonSets are for machines
	case remote != nil && remote.DeletionTimestamp != nil:
		return nil // not deleted by the fabric: it is created again afterwards
	case remote != nil:
		if r.claims != nil && !hasEnded(remote) {
			if err := r.claims.copyMissing(ctx, pod, r.options.RemoteNode); err != nil {
				return err
			}
		}
		return r.writeStatus(ctx, pod, reflectedStatus(pod, remote, r.options.Remote.Name()))
	case len(others) > 0 || hasEnded(pod):
		return nil
	default:
		return r.create(ctx, pod)
	}
}

func (r *reflector) homePod(name cache.ObjectName) *corev1.Pod {
	if found, exists, _ := r.homePods.GetIndexer().GetByKey(name.String()); exists {
		return found.(*corev1.Pod)
	}
	return nil
}

// copiesOf returns the copy of the home pod, and those of earlier pods with its name.
func (r *reflector) copiesOf(name cache.ObjectName, pod *corev1.Pod) (remote *corev1.Pod, others []*corev1.Pod) {
	found, _ := r.remotePods.GetIndexer().ByIndex(byHomePod, name.String())
	for _, object := range found {
		if candidate := object.(*corev1.Pod); pod != nil && isCopyOf(candidate, pod) {
			remote = candidate
		} else {
			others = append(others, candidate)
		}
	}
	return remote, others
}

func (r *reflector) create(ctx context.Context, pod *corev1.Pod) error {
	cluster := r.options.Remote.Name()
	namespace, mapped := r.options.Namespace(pod.Namespace)
	if !mapped {
		return r.pend(ctx, pod, ReasonNamespaceNotMapped,
			fmt.Sprintf("namespace %s is not mapped to one of cluster %s: map it, or keep pods off node %s", pod.Namespace, cluster, r.options.Node))
	}
	wanted := copyOf(pod, namespace, r.options)
	err := r.createRemote(ctx, wanted)
	switch {
	case err == nil:
		r.progress.Printf("pod %s/%s: created %s/%s in cluster %s", pod.Namespace, pod.Name, namespace, wanted.Name, cluster)
		return nil
	case apierrors.IsAlreadyExists(err):
		return r.checkExisting(ctx, pod, namespace)
	case apierrors.IsNotFound(err):
		return r.pend(ctx, pod, ReasonNamespaceMissing,
			fmt.Sprintf("cluster %s has no namespace %s: create it", cluster, namespace))
	case apierrors.ReasonForError(err) == metav1.StatusReasonUnknown:
		// Without the error, which differs each time: every change of the status is an event that
		// triggers a reconciliation.
		return errors.Join(err, r.pend(ctx, pod, ReasonUnreachable, "cluster "+cluster+" does not answer; retrying"))
	default:
		return errors.Join(err, r.pend(ctx, pod, ReasonRefused, fmt.Sprintf("cluster %s refuses the pod: %v", cluster, err)))
	}
}

// createRemote creates a pod, and its namespace unless NoNamespaces.
func (r *reflector) createRemote(ctx context.Context, pod *corev1.Pod) error {
	_, err := r.remote.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if !apierrors.IsNotFound(err) || r.options.NoNamespaces {
		return err
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: pod.Namespace}}
	_, err = r.remote.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	_, err = r.remote.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	return err
}

// checkExisting reports that the remote name is taken, unless it is a copy that is not in the cache
// yet.
func (r *reflector) checkExisting(ctx context.Context, pod *corev1.Pod, namespace string) error {
	found, err := r.remote.CoreV1().Pods(namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get pod %s/%s of cluster %s: %w", namespace, pod.Name, r.options.Remote.Name(), err)
	}
	if isCopyOf(found, pod) {
		return nil
	}
	return r.pend(ctx, pod, ReasonPodExists, fmt.Sprintf(
		"cluster %s has another pod %s/%s: delete that pod, or give this one another name", r.options.Remote.Name(), namespace, pod.Name))
}

// pend sets the status of a pod that does not run, and reconciles it again later.
func (r *reflector) pend(ctx context.Context, pod *corev1.Pod, reason, message string) error {
	r.queue.AddAfter(cache.MetaObjectToName(pod), obstacleInterval)
	return r.writeStatus(ctx, pod, pendingStatus(pod, reason, message))
}

func (r *reflector) writeStatus(ctx context.Context, pod *corev1.Pod, status corev1.PodStatus) error {
	if equality.Semantic.DeepEqual(pod.Status, status) {
		return nil
	}
	changed := pod.DeepCopy()
	changed.Status = status
	_, err := r.home.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// finish deletes the home pod when its copy is deleted, so that its volumes are unused when the home
// pod is deleted.
func (r *reflector) finish(ctx context.Context, pod, remote *corev1.Pod) error {
	if remote != nil {
		return r.deleteRemote(ctx, remote, pod.DeletionGracePeriodSeconds)
	}
	deleted, err := r.copyDeleted(ctx, pod)
	if err != nil || !deleted {
		return err
	}
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64), Preconditions: metav1.NewUIDPreconditions(string(pod.UID))}
	err = r.home.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, now)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	r.progress.Printf("pod %s/%s: deleted in both clusters", pod.Namespace, pod.Name)
	return nil
}

// copyDeleted reads from the remote API server, because a new copy may not be in the cache yet.
func (r *reflector) copyDeleted(ctx context.Context, pod *corev1.Pod) (bool, error) {
	namespace, mapped := r.options.Namespace(pod.Namespace)
	if !mapped {
		return true, nil
	}
	found, err := r.remote.CoreV1().Pods(namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("get pod %s/%s of cluster %s: %w", namespace, pod.Name, r.options.Remote.Name(), err)
	}
	if !isCopyOf(found, pod) {
		return true, nil
	}
	r.queue.AddAfter(cache.MetaObjectToName(pod), obstacleInterval)
	return false, nil
}

// deleteRemote deletes a copy, and again when the grace period of the home pod is shortened.
func (r *reflector) deleteRemote(ctx context.Context, pod *corev1.Pod, grace *int64) error {
	if pod.DeletionTimestamp != nil && (grace == nil || pod.DeletionGracePeriodSeconds == nil || *grace >= *pod.DeletionGracePeriodSeconds) {
		return nil
	}
	options := metav1.DeleteOptions{GracePeriodSeconds: grace, Preconditions: metav1.NewUIDPreconditions(string(pod.UID))}
	err := r.remote.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, options)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete pod %s/%s of cluster %s: %w", pod.Namespace, pod.Name, r.options.Remote.Name(), err)
	}
	return nil
}
