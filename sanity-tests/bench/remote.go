package bench

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// RemoteRow compares claims of the real class in the remote cluster with claims of a virtual class
// at home whose twins are created there.
type RemoteRow struct {
	// Policy is the binding policy: Optimistic or WaitForBound.
	Policy string
	Claims int
	Runs   int
	// RoundTrip is the time of one call to the remote API server.
	RoundTrip time.Duration
	// Real is the real class in the remote cluster.
	Real Times
	// Claim is from the POST of a claim at home until it is Bound; Twin from the same moment until
	// its twin is Bound, with WaitForBound.
	Claim, Twin Times
	// CPUPerVolume and WritesPerVolume are the driver's, for creating and deleting.
	CPUPerVolume    time.Duration
	WritesPerVolume float64
}

// BoundRatio is the ratio of the medians, claim to real.
func (r RemoteRow) BoundRatio() float64 { return ratio(r.Claim.P50.Seconds(), r.Real.P50.Seconds()) }

// TwinTimes records when twins in a namespace of the remote cluster are first seen Bound, until
// the returned function is called with the times when their claims were posted. A twin has the
// name of its claim.
func TwinTimes(ctx context.Context, client kubernetes.Interface, namespace string) (stop func(sent map[string]time.Time) Result, err error) {
	times, err := watchBound(ctx, client, namespace)
	if err != nil {
		return nil, err
	}
	return func(sent map[string]time.Time) Result {
		times.stop()
		return (&stopwatch{at: sent}).until(times.all())
	}, nil
}

// RoundTrip returns the median time of nine calls to an API server.
func RoundTrip(ctx context.Context, client kubernetes.Interface) (time.Duration, error) {
	var each []time.Duration
	for range 9 {
		begin := time.Now()
		if _, err := client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceDefault, metav1.GetOptions{}); err != nil {
			return 0, err
		}
		each = append(each, time.Since(begin))
	}
	return median(each), nil
}

// RemoteReport are the results of volumes in a remote cluster.
type RemoteReport struct {
	Rows []RemoteRow
	// ControllerRSS is with one remote cluster, ControllerRSSMany with Clusters of them, which
	// share one API server.
	ControllerRSS, ControllerRSSMany int64
	Clusters                         int
}

// Print writes the report as a table.
func (r RemoteReport) Print(out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "policy\tround trip\tclaims\truns\treal remote p50\tp99\tclaim p50\tp99\tratio p50\ttwin p50\tp99\treal /s\tclaims /s\tCPU/vol\twrites/vol\t")
	for _, row := range r.Rows {
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\t%.2f\t%s\t%s\t%.1f\t%.1f\t%s\t%.1f\t\n",
			row.Policy, row.RoundTrip.Round(100*time.Microsecond), row.Claims, row.Runs,
			short(row.Real.P50), short(row.Real.P99), short(row.Claim.P50), short(row.Claim.P99), row.BoundRatio(),
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
