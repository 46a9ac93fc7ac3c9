package bench

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// ClaimsGate is the scheduling gate of pods whose claims the controller has not looked up yet.
const ClaimsGate = "fabric.storage.liqo.io/claims"

// GroupLabel is the label of pods that are measured together.
const GroupLabel = "bench/group"

// GateWatch records the gates of the pods of a namespace.
type GateWatch struct {
	Stop func()

	mu   sync.Mutex
	pods map[string]*gatedPod // by uid
	// moved is when its period began: earlier pods do not count.
	moved time.Time
}

type gatedPod struct {
	group                   string
	isGated                 bool
	seen, opened, scheduled time.Time
}

// WatchGates records from now on.
func WatchGates(ctx context.Context, client kubernetes.Interface, namespace string) (*GateWatch, error) {
	ctx, cancel := context.WithCancel(ctx)
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	w := &GateWatch{pods: map[string]*gatedPod{}, Stop: func() { cancel(); factory.Shutdown() }}
	observe := func(object any) {
		if pod, ok := object.(*corev1.Pod); ok {
			w.record(pod, time.Now())
		}
	}
	informer := factory.Core().V1().Pods().Informer()
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: observe, UpdateFunc: func(_, object any) { observe(object) },
	})
	if err != nil {
		w.Stop()
		return nil, err
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		w.Stop()
		return nil, fmt.Errorf("watch the pods: %w", context.Cause(ctx))
	}
	return w, nil
}

func (w *GateWatch) record(pod *corev1.Pod, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one, known := w.pods[string(pod.UID)]
	if !known {
		one = &gatedPod{group: pod.Labels[GroupLabel], seen: at}
		w.pods[string(pod.UID)] = one
	}
	isGated := slices.ContainsFunc(pod.Spec.SchedulingGates, func(gate corev1.PodSchedulingGate) bool { return gate.Name == ClaimsGate })
	one.isGated = one.isGated || isGated
	if one.isGated && !isGated && one.opened.IsZero() {
		one.opened = at
	}
	if pod.Spec.NodeName != "" && one.scheduled.IsZero() {
		one.scheduled = at
	}
}

// Begin forgets all pods so far.
func (w *GateWatch) Begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.moved = time.Now()
}

// Rows returns a row for each group.
func (w *GateWatch) Rows(period string) (rows []GateRow) {
	w.mu.Lock()
	defer w.mu.Unlock()
	groups := map[string][]*gatedPod{}
	for _, pod := range w.pods {
		if !pod.seen.Before(w.moved) {
			groups[pod.group] = append(groups[pod.group], pod)
		}
	}
	for group, pods := range groups {
		row := GateRow{Period: period, Group: group, Pods: len(pods)}
		var opened, scheduled []time.Duration
		for _, pod := range pods {
			if pod.isGated {
				row.Gated++
			}
			if !pod.opened.IsZero() {
				opened = append(opened, pod.opened.Sub(pod.seen))
			}
			if !pod.scheduled.IsZero() {
				scheduled = append(scheduled, pod.scheduled.Sub(pod.seen))
			}
		}
		row.Waiting = row.Gated - len(opened)
		row.Opened, row.Scheduled = middle(opened), middle(scheduled)
		row.Unscheduled = len(pods) - len(scheduled)
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b GateRow) int {
		if a.Group < b.Group {
			return -1
		}
		return 1
	})
	return rows
}

func middle(all []time.Duration) (t Times) {
	if len(all) > 0 {
		slices.Sort(all)
		t.P50, t.P99 = percentile(all, 50), percentile(all, 99)
	}
	return t
}

// GateRow are pods of one kind in one period.
type GateRow struct {
	Period, Group string
	// Pods that were created, of these Gated ones, of which Waiting ones still were at the end; Unscheduled ones had no node.
	Pods, Gated, Waiting, Unscheduled int
	// Opened is from when a pod was seen until its gate was open, Scheduled until it had a node.
	Opened, Scheduled Times
}

// GateReport is what the scheduling gate costs.
type GateReport struct {
	Rows []GateRow
	// WritesPerPod are the driver's API writes at home, in the first period.
	WritesPerPod float64
	// Gone is for how long there was no controller, and Afterwards how long it took then until no gate was closed.
	Gone, Afterwards time.Duration
	// JobsFailed have backoffLimit 0.
	JobsFailed int
}

// Print writes the report as a table.
func (r GateReport) Print(out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "period\tpods\tnumber\tgated\tstill\tgate p50\tp99\tscheduled p50\tp99\tunscheduled\t")
	for _, row := range r.Rows {
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\t%s\t%s\t%s\t%s\t%d\t\n", row.Period, row.Group, row.Pods, row.Gated, row.Waiting,
			orDash(row.Opened.P50), orDash(row.Opened.P99), orDash(row.Scheduled.P50), orDash(row.Scheduled.P99), row.Unscheduled)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "writes per pod: %.1f; without a controller for %s, all gates were open %s after it was back; failed jobs: %d\n",
		r.WritesPerPod, r.Gone.Round(time.Second), short(r.Afterwards), r.JobsFailed)
	return err
}
