package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"storage.liqo.io/sanity-tests/bench"
	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/images"
	"storage.liqo.io/sanity-tests/storage"
)

const (
	movedClaim = "data"
	moveName   = "move"
	movedSet   = "user"
	movedPod   = movedSet + "-0"
	// spareBytes must be free besides both copies, so that kubelet evicts nothing.
	spareBytes = 6 << 30
	// tooShort is exceeded by every cut-over: it includes the start of the source's mover.
	tooShort = "1s"
	// undisturbed is for how long a pod is observed after its move has given up. Without it, the next attempt would
	// follow at once.
	undisturbed = 2 * time.Minute
)

var volumeMoves = schema.GroupVersionResource{Group: "storage.liqo.io", Version: "v1alpha1", Resource: "volumemoves"}

// movePlan is what to measure of moves.
type movePlan struct {
	// size of the data, in files of fileSize; empty to skip moves.
	size, fileSize string
	// change is how much of it changes before the cut-over, in percent.
	change int64
	// settle is how long the volume is unchanged before the move: a pass reads again what changed in the ten minutes before the
	// last one.
	settle time.Duration
	verify []string
	// tooShort: try a maxDowntime that cannot be met first.
	tooShort bool
}

// moveRoute is from where to where a volume moves.
type moveRoute struct {
	name, class string
	driver      storage.Driver
	// target is a node of the home cluster; in is the cluster of the volume afterwards.
	target string
	in     *clusters.Cluster
}

// runMoves measures one move for each route and verification. Each has its own volume, and both copies are deleted
// before the next one.
func runMoves(ctx context.Context, home *environment, lab *clusters.Lab, plan movePlan) (report bench.MoveReport, err error) {
	size, err := parseSize(plan.size)
	if err != nil {
		return report, err
	}
	fileSize, err := parseSize(plan.fileSize)
	if err != nil {
		return report, err
	}
	env, err := openRemote(ctx, home, lab)
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, env.close(context.WithoutCancel(ctx))) }()
	// Movers run in the remote cluster, which has no driver and therefore no image of it.
	if err := driver.ImportImage(ctx, env.cluster); err != nil {
		return report, err
	}
	cluster, err := lab.Cluster("home")
	if err != nil {
		return report, err
	}
	for _, route := range []moveRoute{
		{"home → home", "reference-local", storage.Local, cluster.Nodes()[1].Name, cluster},
		{"home → remote", "reference", storage.Reference, remoteNode, env.cluster},
	} {
		for _, verify := range plan.verify {
			m := &measuredMove{
				remoteEnvironment: env, home: cluster, route: route, plan: plan, verify: verify,
				data: bench.NewMoveData(size, fileSize),
			}
			row, err := m.run(ctx)
			if err != nil {
				return report, fmt.Errorf("move %s, verify %s: %w", route.name, verify, err)
			}
			report.Rows = append(report.Rows, row)
			fmt.Fprintf(os.Stderr, "moves: %s, %s: done\n", route.name, verify)
		}
	}
	return report, nil
}

func parseSize(text string) (int64, error) {
	size, err := resource.ParseQuantity(text)
	if err != nil || size.Sign() <= 0 {
		return 0, fmt.Errorf("%q is not a size", text)
	}
	return size.Value(), nil
}

// measuredMove is one move.
type measuredMove struct {
	*remoteEnvironment
	home      *clusters.Cluster
	route     moveRoute
	plan      movePlan
	verify    string
	data      *bench.MoveData
	namespace string
	// folders are the host's paths of both copies.
	folders []string
}

func (m *measuredMove) run(ctx context.Context) (row bench.MoveRow, err error) {
	if err := m.checkSpace(); err != nil {
		return row, err
	}
	if m.namespace, err = m.environment.namespace(ctx); err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, m.clean(context.WithoutCancel(ctx))) }()
	_, err = m.remote.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: m.namespace}}, metav1.CreateOptions{})
	if err != nil {
		return row, err
	}
	if err := m.createVolume(ctx); err != nil {
		return row, err
	}
	source, err := m.folder(ctx, m.home)
	if err != nil {
		return row, err
	}
	if err := m.data.Fill(source); err != nil {
		return row, err
	}
	fmt.Fprintf(os.Stderr, "moves: %s: %d files written, unchanged until %s\n", m.route.name, m.data.Files(), time.Now().Add(m.plan.settle).Format(time.TimeOnly))
	select {
	case <-ctx.Done():
		return row, context.Cause(ctx)
	case <-time.After(m.plan.settle):
	}
	row = bench.MoveRow{Route: m.route.name, Class: m.route.class, Verify: m.verify, Bytes: m.data.Bytes, Files: m.data.Files()}
	if row.Warm, err = m.copyWarm(ctx); err != nil {
		return row, err
	}
	watch := watchPod(ctx, m.client, m.namespace)
	defer watch.stop()
	if m.plan.tooShort {
		if _, err := m.data.Change(source, 1, m.plan.change); err != nil {
			return row, err
		}
		if row.TooShort, err = m.tryTooShort(ctx, watch); err != nil {
			return row, err
		}
	}
	if err := m.nextPass(ctx); err != nil {
		return row, err
	}
	if row.Changed, err = m.data.Change(source, 2, m.plan.change); err != nil {
		return row, err
	}
	if err := m.cutOver(ctx, watch, &row); err != nil {
		return row, err
	}
	target, err := m.folder(ctx, m.route.in)
	if err != nil {
		return row, err
	}
	return row, m.data.Check(target)
}

// checkSpace returns an error if both copies do not fit.
func (m *measuredMove) checkSpace() error {
	var disk unix.Statfs_t
	if err := unix.Statfs(m.home.SharedDir(), &disk); err != nil {
		return err
	}
	free, needed := int64(disk.Bavail)*disk.Bsize, 2*m.data.Bytes+spareBytes
	if free < needed {
		return fmt.Errorf("two copies of %d MiB need %d MiB of free disk, and there are %d: choose a smaller -move-size",
			m.data.Bytes>>20, needed>>20, free>>20)
	}
	return nil
}

// createVolume creates the claim, and a StatefulSet whose pod runs on the first node and may run at the target.
func (m *measuredMove) createVolume(ctx context.Context) error {
	class, err := m.virtualClass(ctx, m.route.class)
	if err != nil {
		return err
	}
	size := resource.NewQuantity(m.data.Bytes+m.data.Bytes/10+64<<20, resource.BinarySI)
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: movedClaim},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: *size}},
		},
	}
	if _, err := m.client.CoreV1().PersistentVolumeClaims(m.namespace).Create(ctx, claim, metav1.CreateOptions{}); err != nil {
		return err
	}
	first := m.home.Nodes()[0].Name
	if _, err := m.client.AppsV1().StatefulSets(m.namespace).Create(ctx, movedStatefulSet(first, m.route.target), metav1.CreateOptions{}); err != nil {
		return err
	}
	return m.until(ctx, "the pod to run on "+first, 5*time.Minute, func() error {
		pod, err := m.client.CoreV1().Pods(m.namespace).Get(ctx, movedPod, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !isReady(*pod) || pod.Spec.NodeName != first {
			return fmt.Errorf("it is %s on %q", pod.Status.Phase, pod.Spec.NodeName)
		}
		return nil
	})
}

func movedStatefulSet(first, target string) *appsv1.StatefulSet {
	in := func(nodes ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: nodes},
		}}
	}
	labels := map[string]string{"app": movedSet}
	return &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: movedSet},
		Spec: appsv1.StatefulSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					DNSPolicy:                     corev1.DNSDefault,
					TerminationGracePeriodSeconds: new(int64(1)),
					AutomountServiceAccountToken:  new(bool),
					Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
					Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
						RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
							NodeSelectorTerms: []corev1.NodeSelectorTerm{in(first, target)},
						},
						PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 100, Preference: in(first)}},
					}},
					Containers: []corev1.Container{{
						Name: "main", Image: images.BusyboxName, ImagePullPolicy: corev1.PullIfNotPresent,
						Command:      []string{"sleep", "2147483647"},
						VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
					}},
					Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
						PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: movedClaim},
					}}},
				},
			},
		},
	}
}

// folder returns the host's path of the volume's content, which is in this cluster.
func (m *measuredMove) folder(ctx context.Context, in *clusters.Cluster) (string, error) {
	claim, err := m.client.CoreV1().PersistentVolumeClaims(m.namespace).Get(ctx, movedClaim, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	virtual, err := m.client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if virtual.Spec.CSI == nil {
		return "", fmt.Errorf("the PersistentVolume %s has no CSI driver", virtual.Name)
	}
	client, err := in.Client()
	if err != nil {
		return "", err
	}
	attributes := virtual.Spec.CSI.VolumeAttributes
	namespace, name := attributes["storage.liqo.io/twin-namespace"], attributes["storage.liqo.io/twin-name"]
	twin, err := client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("the twin in cluster %s: %w", in.Name(), err)
	}
	real, err := client.CoreV1().PersistentVolumes().Get(ctx, twin.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if real.Spec.CSI == nil {
		return "", fmt.Errorf("the PersistentVolume %s has no CSI driver", real.Name)
	}
	folder := storage.BackendOf(in, m.route.driver).Data(real.Spec.CSI.VolumeHandle)
	m.folders = append(m.folders, folder)
	return folder, nil
}

// copyWarm creates the move and waits until only the cut-over is missing.
func (m *measuredMove) copyWarm(ctx context.Context) (time.Duration, error) {
	begin := time.Now()
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": volumeMoves.GroupVersion().String(), "kind": "VolumeMove",
		"metadata": map[string]any{"name": moveName},
		"spec": map[string]any{
			"claims": []any{movedClaim}, "target": map[string]any{"nodeName": m.route.target}, "verify": m.verify,
			"quiesce": map[string]any{"mode": "Evict"}, "cutover": map[string]any{"mode": "Manual"},
		},
	}}
	if _, err := m.moves().Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return 0, err
	}
	err := m.waitPhase(ctx, "Ready")
	return time.Since(begin), err
}

// nextPass waits until another pass has ended, which finds few changes.
func (m *measuredMove) nextPass(ctx context.Context) error {
	before, err := m.status(ctx)
	if err != nil {
		return err
	}
	return m.until(ctx, "another pass", m.copyLimit(), func() error {
		now, err := m.status(ctx)
		if err != nil {
			return err
		}
		if now.phase != "Ready" || now.passes == before.passes {
			return fmt.Errorf("the move is %s, after %d passes, and %d before: %s", now.phase, now.passes, before.passes, now.waitingFor)
		}
		return nil
	})
}

// tryTooShort requests a cut-over that takes too long, waits until the move gives up, and checks that the pod is left
// alone then.
func (m *measuredMove) tryTooShort(ctx context.Context, watch *podWatch) (*bench.TooShortRow, error) {
	watch.reset()
	if err := m.patch(ctx, `{"cutover":{"maxDowntime":"`+tooShort+`","requested":true}}`); err != nil {
		return nil, err
	}
	row := &bench.TooShortRow{MaxDowntime: tooShort}
	err := m.until(ctx, "the move to give up", 3*m.cutOverLimit(), func() error {
		now, err := m.status(ctx)
		if err != nil {
			return err
		}
		if now.committed {
			return finalError{fmt.Errorf("it took less than %s, and committed: choose a larger -move-size", tooShort)}
		}
		if row.Reason = now.stalled; now.stalledReason != "CutoverOverruns" {
			return fmt.Errorf("it is %s, after %d cut-overs: %s", now.phase, now.overruns, now.waitingFor)
		}
		row.Cutovers = now.overruns
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := m.until(ctx, "the pod to run again", 5*time.Minute, watch.running); err != nil {
		return nil, err
	}
	row.PodsStopped, row.Down = watch.stops()
	begin := time.Now()
	for time.Since(begin) < undisturbed {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(time.Second):
		}
		if err := watch.running(); err != nil {
			return nil, fmt.Errorf("%s after the move gave up: %w", time.Since(begin).Round(time.Second), err)
		}
		if now, _ := watch.stops(); now != row.PodsStopped {
			return nil, fmt.Errorf("the pod was stopped again %s after the move gave up", time.Since(begin).Round(time.Second))
		}
	}
	row.LeftAlone = time.Since(begin)
	if err := m.patch(ctx, `{"cutover":{"maxDowntime":"10m","requested":false}}`); err != nil {
		return nil, err
	}
	return row, m.waitPhase(ctx, "Ready")
}

// cutOver requests the cut-over, and measures it.
func (m *measuredMove) cutOver(ctx context.Context, watch *podWatch, row *bench.MoveRow) error {
	before, err := m.status(ctx)
	if err != nil {
		return err
	}
	row.Predicted, row.Passes = before.predicted, before.passes
	watch.reset()
	if err := m.patch(ctx, `{"cutover":{"requested":true}}`); err != nil {
		return err
	}
	var after moveStatus
	err = m.until(ctx, "the move to be Retaining", m.cutOverLimit(), func() (err error) {
		if after, err = m.status(ctx); err == nil && after.phase != "Retaining" {
			err = fmt.Errorf("it is %s: %s", after.phase, after.waitingFor)
		}
		return err
	})
	if err != nil {
		return err
	}
	row.Sent = after.sent - before.sent
	row.Drain, row.LastPass = after.drained.Sub(after.gated), after.committedAt.Sub(after.drained)
	if row.Unusable, err = time.ParseDuration(after.actual); err != nil {
		return fmt.Errorf("status.downtime.actual: %w", err)
	}
	if err := m.until(ctx, "the pod to run at the target", 5*time.Minute, watch.running); err != nil {
		return err
	}
	_, down := watch.stops()
	if len(down) != 1 {
		return fmt.Errorf("the pod was stopped %d times", len(down))
	}
	row.PodDown = down[0]
	return nil
}

// clean deletes the move, which releases its source, and the volume, and waits until the disk has none of it.
func (m *measuredMove) clean(ctx context.Context) error {
	err := ignoreAbsent(m.moves().Delete(ctx, moveName, metav1.DeleteOptions{}))
	namespaces := m.client.CoreV1().Namespaces()
	err = errors.Join(err, ignoreAbsent(namespaces.Delete(ctx, m.namespace, metav1.DeleteOptions{})))
	err = errors.Join(err, m.until(ctx, "namespace "+m.namespace+" to be deleted", 10*time.Minute, func() error {
		_, err := namespaces.Get(ctx, m.namespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("it exists"), err)
	}))
	err = errors.Join(err, ignoreAbsent(m.remote.CoreV1().Namespaces().Delete(ctx, m.namespace, metav1.DeleteOptions{})))
	return errors.Join(err, m.until(ctx, "both copies to be deleted", 10*time.Minute, func() error {
		for _, folder := range m.folders {
			if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
				return errors.Join(fmt.Errorf("%s exists", folder), err)
			}
		}
		return nil
	}))
}

// copyLimit is for passes that read everything, at 10 MB/s.
func (m *measuredMove) copyLimit() time.Duration {
	return 10*time.Minute + time.Duration(m.data.Bytes/10_000_000)*time.Second
}

// moves are those of the measured namespace.
func (m *measuredMove) moves() dynamic.ResourceInterface {
	return m.dynamic.Resource(volumeMoves).Namespace(m.namespace)
}

func (m *measuredMove) cutOverLimit() time.Duration { return 15 * time.Minute }

// until is machine.Until with a limit, and fewer requests, which would cost CPU while it is measured.
func (m *measuredMove) until(ctx context.Context, what string, limit time.Duration, condition func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := condition()
		if err == nil {
			return nil
		}
		if final := (finalError{}); errors.As(err, &final) {
			return fmt.Errorf("waiting for %s: %w", what, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w (last: %w)", what, context.Cause(ctx), err)
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// finalError is of a condition that cannot become true any more.
type finalError struct{ error }

func (m *measuredMove) waitPhase(ctx context.Context, phase string) error {
	return m.until(ctx, "the move to be "+phase, m.copyLimit(), func() error {
		now, err := m.status(ctx)
		if err != nil || now.phase == phase {
			return err
		}
		err = fmt.Errorf("it is %s: %s %v", now.phase, now.waitingFor, now.preflight)
		if len(now.preflight) > 0 || slices.Contains([]string{"Done", "Cancelled", "Failed"}, now.phase) {
			err = finalError{err}
		}
		return err
	})
}

func (m *measuredMove) patch(ctx context.Context, spec string) error {
	_, err := m.moves().Patch(ctx, moveName, types.MergePatchType, []byte(`{"spec":`+spec+`}`), metav1.PatchOptions{})
	return err
}

// moveStatus are fields of the status of a VolumeMove.
type moveStatus struct {
	phase, waitingFor, predicted, actual string
	preflight                            []string
	passes, sent, overruns               int64
	stalled, stalledReason               string
	committed                            bool
	gated, drained, committedAt          time.Time
}

func (m *measuredMove) status(ctx context.Context) (moveStatus, error) {
	found, err := m.moves().Get(ctx, moveName, metav1.GetOptions{})
	if err != nil {
		return moveStatus{}, err
	}
	return readMoveStatus(found.Object)
}

func readMoveStatus(object map[string]any) (s moveStatus, err error) {
	text := func(path ...string) string {
		found, _, _ := unstructured.NestedString(object, append([]string{"status"}, path...)...)
		return found
	}
	at := func(text string) (when time.Time) {
		if text != "" {
			var wrong error
			when, wrong = time.Parse(time.RFC3339, text)
			err = errors.Join(err, wrong)
		}
		return when
	}
	s.phase, s.waitingFor = text("phase"), text("waitingFor")
	s.predicted, s.actual = text("downtime", "predicted"), text("downtime", "actual")
	s.gated, s.committedAt = at(text("gatedAt")), at(text("committedAt"))
	s.committed = !s.committedAt.IsZero()
	s.preflight, _, _ = unstructured.NestedStringSlice(object, "status", "preflight")
	s.overruns, _, _ = unstructured.NestedInt64(object, "status", "overruns", "count")
	claims, _, _ := unstructured.NestedSlice(object, "status", "claims")
	for _, claim := range claims {
		if claim, ok := claim.(map[string]any); ok {
			s.passes, _, _ = unstructured.NestedInt64(claim, "passes")
			s.sent, _, _ = unstructured.NestedInt64(claim, "bytes", "sent")
		}
	}
	conditions, _, _ := unstructured.NestedSlice(object, "status", "conditions")
	for _, one := range conditions {
		one, ok := one.(map[string]any)
		if !ok || one["status"] != "True" {
			continue
		}
		reason, _ := one["reason"].(string)
		message, _ := one["message"].(string)
		since, _ := one["lastTransitionTime"].(string)
		switch one["type"] {
		case "Stalled":
			s.stalledReason, s.stalled = reason, strings.TrimSpace(message)
		case "Drained":
			s.drained = at(since)
		}
	}
	return s, err
}

// podWatch records when the pod of the StatefulSet is ready.
type podWatch struct {
	stop func()

	mu sync.Mutex
	// uid is that of the pod that was ready last, at lastReady; now says what it is, "" if it is ready.
	uid       types.UID
	lastReady time.Time
	now       string
	down      []time.Duration
}

// watchPod polls, until stop is called.
func watchPod(ctx context.Context, client kubernetes.Interface, namespace string) *podWatch {
	ctx, cancel := context.WithCancel(ctx)
	var ended sync.WaitGroup
	w := &podWatch{stop: func() { cancel(); ended.Wait() }, now: "it was not seen yet"}
	ended.Go(func() {
		for ctx.Err() == nil {
			pod, err := client.CoreV1().Pods(namespace).Get(ctx, movedPod, metav1.GetOptions{})
			w.record(pod, err, time.Now())
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	})
	return w
}

func (w *podWatch) record(pod *corev1.Pod, err error, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case apierrors.IsNotFound(err):
		w.now = "it does not exist"
	case err != nil:
		// What it was is still the best answer.
	case pod.DeletionTimestamp != nil:
		w.now = "it is being deleted"
	case !isReady(*pod):
		w.now = fmt.Sprintf("it is %s on %q, and not ready", pod.Status.Phase, pod.Spec.NodeName)
	default:
		if w.uid != "" && w.uid != pod.UID {
			w.down = append(w.down, at.Sub(w.lastReady))
		}
		w.uid, w.lastReady, w.now = pod.UID, at, ""
	}
}

// reset forgets earlier stops.
func (w *podWatch) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = nil
}

// running returns an error if the pod is not ready.
func (w *podWatch) running() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.now != "" {
		return fmt.Errorf("the pod %s: %s", movedPod, w.now)
	}
	return nil
}

// stops returns how often the pod was replaced since reset, and for how long there was none each time.
func (w *podWatch) stops() (int, []time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.down), slices.Clone(w.down)
}
