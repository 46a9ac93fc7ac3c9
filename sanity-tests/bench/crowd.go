package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	// storageNamespace holds the twins.
	storageNamespace = "liqo-storage"
	// crowdLabel marks the objects of a crowd, so that exactly they are removed.
	crowdLabel = "bench.storage.liqo.io/crowd"
	// noClass exists nowhere: no provisioner acts on the objects of a crowd.
	noClass = "bench-none"
	// writers is how many volumes are made at a time.
	writers = 16
)

// FullMemory makes as many volumes as objects, each as the driver would leave
// them (claim, virtual PV, twin, real PV), reads the controller's memory when it
// stops growing, and removes them again. No storage is behind them.
func (i Installation) FullMemory(ctx context.Context, client kubernetes.Interface, volumes int) (int64, error) {
	crowd, err := newCrowd(ctx, client)
	if err != nil {
		return 0, err
	}
	defer crowd.remove(context.WithoutCancel(ctx))
	if err := each(volumes, func(number int) error { return crowd.add(ctx, number) }); err != nil {
		return 0, err
	}
	return i.SettledRSS(ctx)
}

// crowd is many volumes that exist only as objects.
type crowd struct {
	client    kubernetes.Interface
	home      string // id of the home cluster
	namespace string // of the claims
}

func newCrowd(ctx context.Context, client kubernetes.Interface) (*crowd, error) {
	system, err := client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	namespace, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "bench-crowd-"},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	return &crowd{client, string(system.UID), namespace.Name}, nil
}

func (c *crowd) add(ctx context.Context, i int) error {
	name := fmt.Sprintf("claim-%d", i)
	claim, err := c.createClaim(ctx, c.namespace, name, "virtual-"+name, nil, nil)
	if err != nil {
		return err
	}
	uid := string(claim.UID)
	marks := map[string]string{
		"app.kubernetes.io/managed-by": "storage.liqo.io",
		"storage.liqo.io/home-cluster": c.home,
		"storage.liqo.io/volume":       "pvc-" + uid,
	}
	twin, err := c.createClaim(ctx, storageNamespace, uid, "real-"+uid, marks, map[string]string{
		"storage.liqo.io/claim-namespace": c.namespace,
		"storage.liqo.io/claim-name":      name,
		"storage.liqo.io/claim-uid":       uid,
		"storage.liqo.io/request-name":    "pvc-" + uid,
		"storage.liqo.io/handed-over":     "true",
	})
	if err != nil {
		return err
	}
	return errors.Join(c.createVolume(ctx, "virtual-"+name, claim), c.createVolume(ctx, "real-"+uid, twin))
}

func (c *crowd) createClaim(ctx context.Context, namespace, name, volume string, labels, annotations map[string]string) (*corev1.PersistentVolumeClaim, error) {
	class := noClass
	all := map[string]string{crowdLabel: "true"}
	for key, value := range labels {
		all[key] = value
	}
	return c.client.CoreV1().PersistentVolumeClaims(namespace).Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: all, Annotations: annotations},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class,
			VolumeName:       volume,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:        corev1.VolumeResourceRequirements{Requests: oneGibibyte()},
		},
	}, metav1.CreateOptions{})
}

// createVolume makes the PV that a claim of the crowd already names. Retain, and
// a driver that exists nowhere: nobody acts on it.
func (c *crowd) createVolume(ctx context.Context, name string, claim *corev1.PersistentVolumeClaim) error {
	_, err := c.client.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{crowdLabel: "true"}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      oneGibibyte(),
			AccessModes:                   claim.Spec.AccessModes,
			ClaimRef:                      &corev1.ObjectReference{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
			StorageClassName:              noClass,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: "crowd.bench", VolumeHandle: name},
			},
		},
	}, metav1.CreateOptions{})
	return err
}

func oneGibibyte() corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
}

// remove deletes the crowd. What stays behind after a failure goes with the lab.
func (c *crowd) remove(ctx context.Context) {
	ours := metav1.ListOptions{LabelSelector: crowdLabel}
	_ = c.client.CoreV1().PersistentVolumeClaims(storageNamespace).DeleteCollection(ctx, metav1.DeleteOptions{}, ours)
	_ = c.client.CoreV1().Namespaces().Delete(ctx, c.namespace, metav1.DeleteOptions{})
	_ = c.client.CoreV1().PersistentVolumes().DeleteCollection(ctx, metav1.DeleteOptions{}, ours)
}

// each calls make for 0..n, several at a time, and gives the first errors.
func each(n int, make func(int) error) error {
	var wait sync.WaitGroup
	errs := [writers]error{}
	for w := range writers {
		wait.Go(func() {
			for i := w; i < n && errs[w] == nil; i += writers {
				errs[w] = make(i)
			}
		})
	}
	wait.Wait()
	return errors.Join(errs[:]...)
}

// SettledRSS reads the controller's memory until it has not grown for a while.
func (i Installation) SettledRSS(ctx context.Context) (int64, error) {
	const calm = 10
	var largest int64
	for quiet := 0; quiet < calm; {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(time.Second):
		}
		found, err := i.Processes(Controller)
		if err != nil {
			return 0, err
		}
		_, rss := sum(found, Controller)
		if rss > largest {
			largest, quiet = rss, 0
		} else {
			quiet++
		}
	}
	return largest, nil
}
