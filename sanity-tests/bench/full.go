package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

const (
	copyLabel = "bench.storage.liqo.io/fill"
	// original is the name of the claim whose objects are copied. It occurs nowhere else in them,
	// because copies are renamed by replacing this string.
	original = "fill-original"
	// writers is how many volumes are created concurrently.
	writers = 16
)

// CopiedVolumes are many volumes of the driver. It provisioned the first; the others are copies of
// its four objects (claim, virtual PV, twin, real PV) with other names and uids, bound by
// Kubernetes. Ten thousand are created in minutes, and deleted like any volume.
type CopiedVolumes struct {
	client    kubernetes.Interface
	namespace string // of the claims
	first     volumeObjects
}

type volumeObjects struct {
	claim, twin   *corev1.PersistentVolumeClaim
	virtual, real *corev1.PersistentVolume
}

// NewCopiedVolumes provisions the first volume with this batch's class, in its namespace.
func NewCopiedVolumes(ctx context.Context, batch Batch) (*CopiedVolumes, error) {
	times, err := watchBound(ctx, batch.Client, batch.Namespace)
	if err != nil {
		return nil, err
	}
	defer times.stop()
	copies := &CopiedVolumes{client: batch.Client, namespace: batch.Namespace}
	claims := batch.Client.CoreV1().PersistentVolumeClaims(batch.Namespace)
	if _, err := claims.Create(ctx, batch.claim(original), metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	if _, err := times.await(ctx, 1); err != nil {
		return nil, err
	}
	if copies.first.claim, err = claims.Get(ctx, original, metav1.GetOptions{}); err != nil {
		return nil, err
	}
	volumes := batch.Client.CoreV1().PersistentVolumes()
	if copies.first.virtual, err = volumes.Get(ctx, copies.first.claim.Spec.VolumeName, metav1.GetOptions{}); err != nil {
		return nil, err
	}
	attributes := copies.first.virtual.Spec.CSI.VolumeAttributes
	twins := batch.Client.CoreV1().PersistentVolumeClaims(attributes["storage.liqo.io/twin-namespace"])
	if copies.first.twin, err = twins.Get(ctx, attributes["storage.liqo.io/twin-name"], metav1.GetOptions{}); err != nil {
		return nil, err
	}
	copies.first.real, err = volumes.Get(ctx, copies.first.twin.Spec.VolumeName, metav1.GetOptions{})
	return copies, err
}

// Add creates copies and waits until all are Bound.
func (f *CopiedVolumes) Add(ctx context.Context, count int) error {
	times, err := watchBound(ctx, f.client, f.namespace)
	if err != nil {
		return err
	}
	defer times.stop()
	twins, err := watchBound(ctx, f.client, f.first.twin.Namespace)
	if err != nil {
		return err
	}
	defer twins.stop()
	existing := len(twins.all())
	if err := parallel(count, func(number int) error { return f.copy(ctx, fmt.Sprintf("fill-%05d", number)) }); err != nil {
		return err
	}
	_, err = times.await(ctx, count+1)
	_, err2 := twins.await(ctx, existing+count)
	return errors.Join(err, err2)
}

// copy creates one copy. Each object refers to the one created before it by uid; the virtual PV
// comes last, because the driver finds a volume by it.
func (f *CopiedVolumes) copy(ctx context.Context, name string) error {
	claims, volumes := f.client.CoreV1().PersistentVolumeClaims, f.client.CoreV1().PersistentVolumes()
	claim := renamedCopy(f.first.claim, strings.NewReplacer(original, name))
	claim.Spec.VolumeName = ""
	// csi-provisioner would provision a claim with a selected node and no PV.
	delete(claim.Annotations, SelectedNode)
	created, err := claims(f.namespace).Create(ctx, claim, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	real := "real-" + string(created.UID)
	renamed := strings.NewReplacer(
		string(f.first.claim.UID), string(created.UID),
		f.first.real.Name, real,
		original, name,
	)
	twin := renamedCopy(f.first.twin, renamed)
	twin.Spec.VolumeName = real
	madeTwin, err := claims(twin.Namespace).Create(ctx, twin, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	volume := renamedCopy(f.first.real, renamed)
	volume.Spec.ClaimRef.UID = madeTwin.UID
	volume.Spec.CSI.VolumeHandle = real
	if _, err := volumes.Create(ctx, volume, metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err = volumes.Create(ctx, renamedCopy(f.first.virtual, renamed), metav1.CreateOptions{})
	return err
}

// renamedCopy copies the object without what Kubernetes set in it, and replaces names everywhere.
func renamedCopy[T interface {
	*corev1.PersistentVolume | *corev1.PersistentVolumeClaim
	metav1.Object
}](object T, names *strings.Replacer) T {
	text, err := json.Marshal(object)
	if err != nil {
		panic(err) // Kubernetes objects always marshal
	}
	var copied T
	if err := json.Unmarshal([]byte(names.Replace(string(text))), &copied); err != nil {
		panic(err)
	}
	copied.SetUID(types.UID(""))
	copied.SetResourceVersion("")
	copied.SetManagedFields(nil)
	delete(copied.GetAnnotations(), "pv.kubernetes.io/bind-completed")
	delete(copied.GetAnnotations(), "pv.kubernetes.io/bound-by-controller")
	labels := copied.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[copyLabel] = "true"
	copied.SetLabels(labels)
	return copied
}

// Remove deletes all claims at once and waits until all copied PersistentVolumes are deleted.
func (f *CopiedVolumes) Remove(ctx context.Context) error {
	claims := f.client.CoreV1().PersistentVolumeClaims(f.namespace)
	for {
		err := claims.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
		if err == nil || apierrors.IsNotFound(err) {
			break
		}
		// The API server deletes one object after the other, with a timeout of a minute.
		if !apierrors.IsTimeout(err) && !apierrors.IsServerTimeout(err) {
			return err
		}
	}
	for {
		left, err := f.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{LabelSelector: copyLabel, Limit: 1})
		if err != nil {
			return err
		}
		if len(left.Items) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("volumes such as %s still exist after their claims were deleted: %w", left.Items[0].Name, ctx.Err())
		case <-time.After(time.Second):
		}
	}
}

// parallel calls create for 0..n-1 from several goroutines, each of which stops at its first error.
func parallel(n int, create func(int) error) error {
	var wait sync.WaitGroup
	errs := [writers]error{}
	for w := range writers {
		wait.Go(func() {
			for i := w; i < n && errs[w] == nil; i += writers {
				errs[w] = create(i)
			}
		})
	}
	wait.Wait()
	return errors.Join(errs[:]...)
}

// FullReport is what the driver costs with many volumes in the cluster.
type FullReport struct {
	RealClass string
	Volumes   int
	// Without and With are the same batches without and with the volumes.
	Without, With []Row
	// RSS is that of each replica with the volumes; Peak its maximum while all of them were
	// deleted at once, which took Removal.
	RSS, Peak []int64
	Removal   time.Duration
	// Restart is the time from deleting both replicas until both are ready again and a claim was
	// bound and deleted, with the volumes and this number of RemoteClusters. RestartCalls are the
	// API calls in this time, RestartReceived the bytes that each pod received (sidecars
	// included), RestartRSS the RSS of each replica afterwards.
	Restart         time.Duration
	Clusters        int
	RestartCalls    Calls
	RestartReceived []int64
	RestartRSS      []int64
}

// Print writes the report as a table.
func (r FullReport) Print(out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "volumes there\tclaims\tliqo p50\tp99\tCPU/vol\treads/vol\tlists/vol\twrites/vol\t")
	for i, with := range r.With {
		for _, row := range []struct {
			Row
			volumes int
		}{{r.Without[i], 0}, {with, r.Volumes}} {
			fmt.Fprintf(table, "%d\t%d\t%s\t%s\t%s\t%.1f\t%.2f\t%.1f\t\n", row.volumes, row.Claims,
				short(row.Virtual.P50), short(row.Virtual.P99), row.CPUPerVolume.Round(10*time.Microsecond),
				row.ReadsPerVolume, row.ListsPerVolume, row.WritesPerVolume)
		}
		fmt.Fprintf(table, "ratio\t%d\t%.2f\t%.2f\t%.2f\t\t\t\t\n", with.Claims,
			ratio(with.Virtual.P50.Seconds(), r.Without[i].Virtual.P50.Seconds()),
			ratio(with.Virtual.P99.Seconds(), r.Without[i].Virtual.P99.Seconds()),
			ratio(with.CPUPerVolume.Seconds(), r.Without[i].CPUPerVolume.Seconds()))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "RSS of the controller's replicas with %d volumes of class %s: %s MiB; maximum while all were deleted at once, in %s: %s MiB\n",
		r.Volumes, r.RealClass, joinMebibytes(r.RSS), r.Removal.Round(time.Second), joinMebibytes(r.Peak))
	_, err2 := fmt.Fprintf(out, "restart with these volumes and %d remote clusters: %s from deleting both replicas until the new ones had bound and deleted a claim, with %d list and %d get requests; their pods received %s MiB (sidecars included); RSS afterwards %s MiB\n",
		r.Clusters, r.Restart.Round(10*time.Millisecond), r.RestartCalls.Lists, r.RestartCalls.Reads, joinMebibytes(r.RestartReceived), joinMebibytes(r.RestartRSS))
	return errors.Join(err, err2)
}

func joinMebibytes(all []int64) string {
	texts := make([]string, len(all))
	for i, bytes := range all {
		texts[i] = fmt.Sprintf("%.1f", mebibytes(bytes))
	}
	return strings.Join(texts, " and ")
}

// StableRSS returns the RSS of the controller's replicas once none has grown for ten seconds.
func (i Installation) StableRSS(ctx context.Context) ([]int64, error) {
	var last []int64
	for quiet := 0; quiet < 10; {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Second):
		}
		found, err := i.Processes(Controller)
		if err != nil {
			return nil, err
		}
		now := make([]int64, len(found))
		grown := len(now) != len(last)
		for n, process := range found {
			now[n] = process.RSS
			grown = grown || process.RSS > last[n]
		}
		if last = now; grown {
			quiet = 0
		} else {
			quiet++
		}
	}
	return last, nil
}

// ResetPeaks resets the peak RSS of the controller's replicas (proc(5), clear_refs) and returns
// their processes.
func (i Installation) ResetPeaks() ([]Process, error) { return i.resetPeaks(Controller) }

// ResetAllPeaks is ResetPeaks for the replicas of the fabric too.
func (i Installation) ResetAllPeaks() ([]Process, error) { return i.resetPeaks(Controller, Fabric) }

func (i Installation) resetPeaks(names ...string) ([]Process, error) {
	found, err := i.Processes(names...)
	for _, process := range found {
		err = errors.Join(err, os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", process.PID), []byte("5"), 0))
	}
	return found, err
}

// Peaks returns the peak RSS of these processes. One that has ended (out of memory, for example)
// is an error.
func (i Installation) Peaks(since []Process) ([]int64, error) {
	found, err := i.Processes(Controller)
	if err != nil {
		return nil, err
	}
	var peaks []int64
	for _, process := range since {
		at := slices.IndexFunc(found, func(now Process) bool { return now.PID == process.PID })
		if at < 0 {
			return nil, fmt.Errorf("process %d of the controller ended meanwhile", process.PID)
		}
		peaks = append(peaks, found[at].Peak)
	}
	return peaks, nil
}
