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
	// fillLabel is on the copies of a fill.
	fillLabel = "bench.storage.liqo.io/fill"
	// original is the claim whose objects are copied, named as nothing else in them is.
	original = "fill-original"
	// writers is how many volumes are made at a time.
	writers = 16
)

// Fill is many volumes in the cluster that the driver takes for its own, because they
// are: it provisioned the first, and the others are copies of its four objects (claim,
// virtual PV, twin, real PV) under uids and names of their own, bound by Kubernetes. Ten
// thousand of them are made in minutes, and go as every volume does.
type Fill struct {
	client    kubernetes.Interface
	namespace string // of the claims
	first     objects
}

// objects are those of one volume.
type objects struct {
	claim, twin   *corev1.PersistentVolumeClaim
	virtual, real *corev1.PersistentVolume
}

// NewFill provisions the first volume with this race's class, in its namespace.
func NewFill(ctx context.Context, race Race) (*Fill, error) {
	times, err := watchBound(ctx, race.Client, race.Namespace)
	if err != nil {
		return nil, err
	}
	defer times.stop()
	fill := &Fill{client: race.Client, namespace: race.Namespace}
	claims := race.Client.CoreV1().PersistentVolumeClaims(race.Namespace)
	if _, err := claims.Create(ctx, race.claim(original), metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	if _, err := times.await(ctx, 1); err != nil {
		return nil, err
	}
	if fill.first.claim, err = claims.Get(ctx, original, metav1.GetOptions{}); err != nil {
		return nil, err
	}
	volumes := race.Client.CoreV1().PersistentVolumes()
	if fill.first.virtual, err = volumes.Get(ctx, fill.first.claim.Spec.VolumeName, metav1.GetOptions{}); err != nil {
		return nil, err
	}
	attributes := fill.first.virtual.Spec.CSI.VolumeAttributes
	twins := race.Client.CoreV1().PersistentVolumeClaims(attributes["storage.liqo.io/twin-namespace"])
	if fill.first.twin, err = twins.Get(ctx, attributes["storage.liqo.io/twin-name"], metav1.GetOptions{}); err != nil {
		return nil, err
	}
	fill.first.real, err = volumes.Get(ctx, fill.first.twin.Spec.VolumeName, metav1.GetOptions{})
	return fill, err
}

// Add makes so many copies and waits until Kubernetes has bound them all.
func (f *Fill) Add(ctx context.Context, count int) error {
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
	there := len(twins.all())
	if err := each(count, func(number int) error { return f.copy(ctx, fmt.Sprintf("fill-%05d", number)) }); err != nil {
		return err
	}
	_, err = times.await(ctx, count+1)
	_, err2 := twins.await(ctx, there+count)
	return errors.Join(err, err2)
}

// copy makes one more volume. Each object names the one before by its uid; the virtual PV,
// which is what users and the driver go by, comes last.
func (f *Fill) copy(ctx context.Context, name string) error {
	claims, volumes := f.client.CoreV1().PersistentVolumeClaims, f.client.CoreV1().PersistentVolumes()
	claim := fresh(f.first.claim, strings.NewReplacer(original, name))
	claim.Spec.VolumeName = ""
	// A claim with a node and no PV would be provisioned.
	delete(claim.Annotations, SelectedNode)
	made, err := claims(f.namespace).Create(ctx, claim, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	real := "real-" + string(made.UID)
	renamed := strings.NewReplacer(
		string(f.first.claim.UID), string(made.UID),
		f.first.real.Name, real,
		original, name,
	)
	twin := fresh(f.first.twin, renamed)
	twin.Spec.VolumeName = real
	madeTwin, err := claims(twin.Namespace).Create(ctx, twin, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	volume := fresh(f.first.real, renamed)
	volume.Spec.ClaimRef.UID = madeTwin.UID
	volume.Spec.CSI.VolumeHandle = real
	if _, err := volumes.Create(ctx, volume, metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err = volumes.Create(ctx, fresh(f.first.virtual, renamed), metav1.CreateOptions{})
	return err
}

// fresh is the object as it was before Kubernetes wrote on it, under other names.
func fresh[T interface {
	*corev1.PersistentVolume | *corev1.PersistentVolumeClaim
	metav1.Object
}](object T, renamed *strings.Replacer) T {
	text, err := json.Marshal(object)
	if err != nil {
		panic(err) // objects of Kubernetes always are JSON
	}
	var copied T
	if err := json.Unmarshal([]byte(renamed.Replace(string(text))), &copied); err != nil {
		panic(err)
	}
	copied.SetUID(types.UID(""))
	copied.SetResourceVersion("")
	copied.SetManagedFields(nil)
	annotations := copied.GetAnnotations()
	for _, binding := range []string{"pv.kubernetes.io/bind-completed", "pv.kubernetes.io/bound-by-controller"} {
		delete(annotations, binding)
	}
	labels := copied.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[fillLabel] = "true"
	copied.SetLabels(labels)
	return copied
}

// Remove deletes all claims at once and waits until nothing of any volume is left.
func (f *Fill) Remove(ctx context.Context) error {
	claims := f.client.CoreV1().PersistentVolumeClaims(f.namespace)
	for {
		err := claims.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
		if err == nil || apierrors.IsNotFound(err) {
			break
		}
		// The API server deletes one after the other, and gives up after a minute.
		if !apierrors.IsTimeout(err) && !apierrors.IsServerTimeout(err) {
			return err
		}
	}
	for {
		left, err := f.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{LabelSelector: fillLabel, Limit: 1})
		if err != nil {
			return err
		}
		if len(left.Items) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("volumes such as %s are still there after their claims were deleted: %w", left.Items[0].Name, ctx.Err())
		case <-time.After(time.Second):
		}
	}
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

// FullReport is what the driver costs beside many volumes.
type FullReport struct {
	RealClass string
	Volumes   int
	// Without and With are the same races without and with the volumes.
	Without, With []Row
	// RSS is each replica's with the volumes there; Peak the most it had of it while they
	// were all deleted at once, which took Removal.
	RSS, Peak []int64
	Removal   time.Duration
	// Restart is from deleting both replicas until both are ready again and a claim was bound
	// and deleted, with the volumes there and so many remote Clusters; RestartCalls is what they
	// asked of the API server meanwhile, RestartReceived the bytes that each of their pods had
	// received by then, sidecars included, and RestartRSS what each replica held afterwards.
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
	_, err := fmt.Fprintf(out, "replicas of the controller with %d volumes of class %s (RSS): %s MiB; most while all were deleted at once, in %s: %s MiB\n",
		r.Volumes, r.RealClass, inMebibytes(r.RSS), r.Removal.Round(time.Second), inMebibytes(r.Peak))
	_, err2 := fmt.Fprintf(out, "restart with these volumes and %d remote clusters: %s from the end of both replicas to a claim that was bound and deleted by their successors, which read %d pages of lists and %d objects singly; their pods received %s MiB, sidecars included, and they held %s MiB afterwards\n",
		r.Clusters, r.Restart.Round(10*time.Millisecond), r.RestartCalls.Lists, r.RestartCalls.Reads, inMebibytes(r.RestartReceived), inMebibytes(r.RestartRSS))
	return errors.Join(err, err2)
}

func inMebibytes(all []int64) string {
	texts := make([]string, len(all))
	for i, bytes := range all {
		texts[i] = fmt.Sprintf("%.1f", mebibytes(bytes))
	}
	return strings.Join(texts, " and ")
}

// SettledRSS reads the memory of the controller's replicas until none has grown for a while.
func (i Installation) SettledRSS(ctx context.Context) ([]int64, error) {
	const calm = 10
	var last []int64
	for quiet := 0; quiet < calm; {
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

// ForgetPeaks makes the kernel count the most memory of the controller's replicas from now on
// (proc(5), clear_refs), and gives their processes.
func (i Installation) ForgetPeaks() ([]Process, error) {
	found, err := i.Processes(Controller)
	for _, process := range found {
		err = errors.Join(err, os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", process.PID), []byte("5"), 0))
	}
	return found, err
}

// Peaks is the most memory that each of these processes had. One that ended meanwhile, as
// for want of memory, is an error.
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
