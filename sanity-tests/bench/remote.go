package bench

import (
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// RemoteRow is one race on the real class in the remote cluster, by somebody who
// is there, and one on a virtual class at home whose twins are made there.
type RemoteRow struct {
	// Policy is when a claim is answered for: Optimistic or WaitForBound.
	Policy string
	Claims int
	Heats  int
	// RoundTrip is what one call to the remote API server takes, measured.
	RoundTrip time.Duration
	// Real is the real class in the remote cluster itself.
	Real Times
	// Claim is from the POST of a claim at home to Bound; Twin from the same
	// moment to Bound of its twin, where it is waited for.
	Claim, Twin Times
	// CPUPerVolume and WritesPerVolume are the driver's, creating and deleting.
	CPUPerVolume    time.Duration
	WritesPerVolume float64
}

// Bound is how many times as long a claim takes as the real class there.
func (r RemoteRow) Bound() float64 { return ratio(r.Claim.P50.Seconds(), r.Real.P50.Seconds()) }

// TwinTimes notes when twins are first seen Bound in a namespace of the remote
// cluster, until the returned function is called, which sums them up beside when
// their claims were posted. The names of twins are those of their claims.
func TwinTimes(ctx context.Context, client kubernetes.Interface, namespace string) (since func(sent map[string]time.Time) Heat, err error) {
	times, err := watchBound(ctx, client, namespace)
	if err != nil {
		return nil, err
	}
	return func(sent map[string]time.Time) Heat {
		times.stop()
		stopwatch := &stopwatch{at: sent}
		return stopwatch.until(times.all())
	}, nil
}

// RoundTrip measures one call to an API server: the median of a few.
func RoundTrip(ctx context.Context, client kubernetes.Interface) (time.Duration, error) {
	const calls = 9
	var each []time.Duration
	for range calls {
		begin := time.Now()
		if _, err := client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceDefault, metav1.GetOptions{}); err != nil {
			return 0, err
		}
		each = append(each, time.Since(begin))
	}
	slices.Sort(each)
	return percentile(each, 50), nil
}

// RemoteReport is what was measured of volumes in a remote cluster.
type RemoteReport struct {
	Rows []RemoteRow
	// ControllerRSS is the controller's with one remote cluster and with Clusters
	// of them, which share one API server.
	ControllerRSS, ControllerRSSMany int64
	Clusters                         int
}

// Print writes the report as a table.
func (r RemoteReport) Print(out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "policy\tround trip\tclaims\theats\treal there p50\tp99\tclaim p50\tp99\tratio p50\ttwin p50\tp99\treal /s\tclaims /s\tCPU/vol\twrites/vol\t")
	for _, row := range r.Rows {
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\t%.2f\t%s\t%s\t%.1f\t%.1f\t%s\t%.1f\t\n",
			row.Policy, row.RoundTrip.Round(100*time.Microsecond), row.Claims, row.Heats,
			short(row.Real.P50), short(row.Real.P99), short(row.Claim.P50), short(row.Claim.P99), row.Bound(),
			orDash(row.Twin.P50), orDash(row.Twin.P99), row.Real.PerSecond, row.Claim.PerSecond,
			row.CPUPerVolume.Round(10*time.Microsecond), row.WritesPerVolume)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "controller (RSS): %.1f MiB with one remote cluster, %.1f MiB with %d that share one API server\n",
		mebibytes(r.ControllerRSS), mebibytes(r.ControllerRSSMany), r.Clusters)
	return err
}

func orDash(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return short(d)
}
