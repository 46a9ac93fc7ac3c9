package fabric

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

const (
	kosmosGlobal   = "kosmos.io/global"
	kosmosClusters = "kosmos-io/cluster-owners"
	// kosmosRequeue is utils.DefaultRequeueTime of Kosmos.
	kosmosRequeue = 10 * time.Second
)

// kosmosClaims handles claims like the cluster manager of Kosmos, bugs included (v0.5.0-160,
// pkg/clustertree/cluster-manager/controllers): it copies missing claims, overwrites the remote claim
// of the same name if its requests differ textually, and overwrites the claim at home when the copy
// changes, if the copy was marked before the change.
type kosmosClaims struct {
	home, remote             kubernetes.Interface
	cluster                  string
	progress                 *log.Logger
	homeClaims, remoteClaims cache.SharedIndexInformer
	queue                    workqueue.TypedRateLimitingInterface[kosmosTask]
}

type kosmosTask struct {
	// root: the claim at home.
	root bool
	name cache.ObjectName
}

func newKosmosClaims(home, remote kubernetes.Interface, cluster string, progress *log.Logger) *kosmosClaims {
	return &kosmosClaims{
		home: home, remote: remote, cluster: cluster, progress: progress,
		homeClaims:   coreinformers.NewPersistentVolumeClaimInformer(home, metav1.NamespaceAll, 0, cache.Indexers{}),
		remoteClaims: coreinformers.NewPersistentVolumeClaimInformer(remote, metav1.NamespaceAll, 0, cache.Indexers{}),
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[kosmosTask](200*time.Millisecond, kosmosRequeue)),
	}
}

func (k *kosmosClaims) start(ctx context.Context, running *sync.WaitGroup) {
	add := func(root bool, object any) {
		if name, err := cache.DeletionHandlingObjectToName(object); err == nil {
			k.queue.Add(kosmosTask{root, name})
		}
	}
	_, _ = k.homeClaims.AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, claim any) { add(true, claim) },
		// root_pvc_controller.go reads the clusters from the claim, so that it handles deletions only
		// while the claim is terminating.
		DeleteFunc: func(claim any) { add(true, claim) },
	})
	_, _ = k.remoteClaims.AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(before, claim any) {
			if before.(*corev1.PersistentVolumeClaim).Annotations[kosmosGlobal] == "true" {
				add(false, claim)
			}
		},
	})
	_ = k.homeClaims.SetWatchErrorHandlerWithContext(logWatchError(k.progress, "watch claims at home"))
	_ = k.remoteClaims.SetWatchErrorHandlerWithContext(logWatchError(k.progress, "watch claims of cluster "+k.cluster))
	running.Go(func() { k.homeClaims.RunWithContext(ctx) })
	running.Go(func() { k.remoteClaims.RunWithContext(ctx) })
	running.Go(func() { <-ctx.Done(); k.queue.ShutDown() })
	for range workers {
		running.Go(func() { k.work(ctx) })
	}
}

func (k *kosmosClaims) work(ctx context.Context) {
	for {
		task, ended := k.queue.Get()
		if ended {
			return
		}
		step, cancel := context.WithTimeout(ctx, time.Minute+stepLimit)
		reconcile := k.reconcileLeaf
		if task.root {
			reconcile = k.reconcileRoot
		}
		err := reconcile(step, task.name)
		cancel()
		if err != nil && ctx.Err() == nil {
			k.progress.Printf("claim %s, of home %v: %v", task.name, task.root, err)
			k.queue.AddAfter(task, kosmosRequeue)
		}
		k.queue.Done(task)
	}
}

// copyMissing copies the claims of a pod, like createStorageInLeafCluster of root_pod_controller.go.
func (k *kosmosClaims) copyMissing(ctx context.Context, pod *corev1.Pod, node string) error {
	for _, volume := range pod.Spec.Volumes {
		if volume.PersistentVolumeClaim == nil {
			continue
		}
		claim, err := k.home.CoreV1().PersistentVolumeClaims(pod.Namespace).Get(ctx, volume.PersistentVolumeClaim.ClaimName, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("claim of pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		if !slices.Contains(clustersOf(claim), k.cluster) {
			metav1.SetMetaDataAnnotation(&claim.ObjectMeta, kosmosClusters, strings.Join(append(clustersOf(claim), k.cluster), ","))
			if claim, err = k.home.CoreV1().PersistentVolumeClaims(pod.Namespace).Update(ctx, claim, metav1.UpdateOptions{}); err != nil {
				return fmt.Errorf("mark claim of pod %s/%s: %w", pod.Namespace, pod.Name, err)
			}
		}
		_, err = k.remote.CoreV1().PersistentVolumeClaims(pod.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			if err != nil {
				return fmt.Errorf("get claim %s/%s: %w", claim.Namespace, claim.Name, err)
			}
			continue
		}
		duplicate := claim.DeepCopy()
		duplicate.ObjectMeta = metav1.ObjectMeta{
			Namespace: claim.Namespace, Name: claim.Name, Labels: claim.Labels, Annotations: claim.Annotations,
			Finalizers: claim.Finalizers,
		}
		metav1.SetMetaDataAnnotation(&duplicate.ObjectMeta, kosmosGlobal, "true")
		if node != "" {
			metav1.SetMetaDataAnnotation(&duplicate.ObjectMeta, "volume.kubernetes.io/selected-node", node)
		}
		_, err = k.remote.CoreV1().PersistentVolumeClaims(pod.Namespace).Create(ctx, duplicate, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("copy claim %s/%s: %w", claim.Namespace, claim.Name, err)
		}
		k.progress.Printf("claim %s/%s: copied", claim.Namespace, claim.Name)
	}
	return nil
}

// reconcileRoot is root_pvc_controller.go.
func (k *kosmosClaims) reconcileRoot(ctx context.Context, name cache.ObjectName) error {
	claim, err := k.home.CoreV1().PersistentVolumeClaims(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if !slices.Contains(clustersOf(claim), k.cluster) {
		return nil
	}
	remoteClaims := k.remote.CoreV1().PersistentVolumeClaims(name.Namespace)
	if claim.DeletionTimestamp != nil {
		if err := remoteClaims.Delete(ctx, name.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		return nil
	}
	old, err := remoteClaims.Get(ctx, name.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if reflect.DeepEqual(old.Spec.Resources.Requests, claim.Spec.Resources.Requests) {
		return nil
	}
	claim.Annotations = old.Annotations
	claim.UID = old.UID
	claim.ResourceVersion = ""
	claim.OwnerReferences = old.OwnerReferences
	k.progress.Printf("claim %s: overwrote the remote claim", name)
	return mergeClaim(ctx, k.remote, old, claim)
}

// reconcileLeaf is leaf_pvc_controller.go.
func (k *kosmosClaims) reconcileLeaf(ctx context.Context, name cache.ObjectName) error {
	claim, err := k.remote.CoreV1().PersistentVolumeClaims(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	root, err := k.waitNamed(ctx, name, claim.Status.Phase == corev1.ClaimBound)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if reflect.DeepEqual(root.Status, claim.Status) {
		return nil
	}
	changed := claim.DeepCopy()
	changed.UID = ""
	metav1.SetMetaDataAnnotation(&changed.ObjectMeta, kosmosGlobal, "true")
	delete(changed.Annotations, "volume.kubernetes.io/selected-node")
	changed.ResourceVersion = root.ResourceVersion
	changed.OwnerReferences = root.OwnerReferences
	metav1.SetMetaDataAnnotation(&changed.ObjectMeta, kosmosClusters, k.cluster)
	changed.Spec = root.Spec
	k.progress.Printf("claim %s: overwrote the claim at home", name)
	if err := mergeClaim(ctx, k.home, root, changed); err != nil {
		return err
	}
	updated, err := k.home.CoreV1().PersistentVolumeClaims(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	updated.Status = claim.Status
	_, err = k.home.CoreV1().PersistentVolumeClaims(name.Namespace).UpdateStatus(ctx, updated, metav1.UpdateOptions{})
	return err
}

// waitNamed returns the claim at home; if named, once it has a volumeName, within a minute.
func (k *kosmosClaims) waitNamed(ctx context.Context, name cache.ObjectName, named bool) (*corev1.PersistentVolumeClaim, error) {
	limit := time.Now().Add(time.Minute)
	for {
		claim, err := k.home.CoreV1().PersistentVolumeClaims(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
		if err != nil || !named || claim.Spec.VolumeName != "" {
			return claim, err
		}
		if time.Now().After(limit) {
			return nil, fmt.Errorf("claim %s is not bound", name)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pollInterval):
		}
	}
}

// mergeClaim patches the claim with utils.CreateMergePatch.
func mergeClaim(ctx context.Context, client kubernetes.Interface, before, after *corev1.PersistentVolumeClaim) error {
	old, err := json.Marshal(before)
	if err != nil {
		return err
	}
	wanted, err := json.Marshal(after)
	if err != nil {
		return err
	}
	patch, err := jsonpatch.CreateMergePatch(old, wanted)
	if err != nil {
		return err
	}
	_, err = client.CoreV1().PersistentVolumeClaims(before.Namespace).Patch(ctx, before.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func clustersOf(claim *corev1.PersistentVolumeClaim) []string {
	return slices.DeleteFunc(strings.Split(claim.Annotations[kosmosClusters], ","), func(one string) bool { return one == "" })
}
