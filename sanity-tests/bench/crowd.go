package bench

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// CrowdRow is a period with several clusters, in each of which pods of the fabric run. In it, single pods are created in
// these clusters, one after the other.
type CrowdRow struct {
	// Period says who is hostile.
	Period string
	Took   time.Duration
	// Pod is from the POST of such a pod until it is ready.
	Pod Times
	// FabricPeak and ControllerPeak are the largest RSS of a replica in the period, in bytes.
	FabricPeak, ControllerPeak int64
	// FabricCPU and ControllerCPU are those of all replicas.
	FabricCPU, ControllerCPU time.Duration
	// Home and Remote are the driver's API calls, without watches.
	Home, Remote Calls
	// Answers and Sent are how many answers the hostile cluster has invented, and their bytes.
	Answers, Sent int64
}

// CrowdReport is what the fabric costs beside hostile clusters and tenants.
type CrowdReport struct {
	Clusters, PodsEach int
	Rows               []CrowdRow
	// Restart is from deleting all replicas of the fabric, while all others do what they do in the last row, until a pod
	// that was created then is ready.
	Restart time.Duration
}

// Print writes the report as a table.
func (r CrowdReport) Print(out io.Writer) error {
	fmt.Fprintf(out, "%d clusters with %d pods each\n", r.Clusters, r.PodsEach)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "period\tseconds\tpod p50\tp99\tfabric peak MiB\tcontroller peak MiB\tfabric CPU\tcontroller CPU\treads/s home\tlists/s\twrites/s\treads/s remote\tlists/s\twrites/s\tinvented answers\tMiB\t")
	for _, row := range r.Rows {
		each := func(calls int) float64 { return ratio(float64(calls), row.Took.Seconds()) }
		share := func(cpu time.Duration) float64 { return 100 * ratio(cpu.Seconds(), row.Took.Seconds()) }
		fmt.Fprintf(table, "%s\t%.0f\t%s\t%s\t%.1f\t%.1f\t%.0f %%\t%.0f %%\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%d\t%.0f\t\n",
			row.Period, row.Took.Seconds(), short(row.Pod.P50), short(row.Pod.P99), mebibytes(row.FabricPeak), mebibytes(row.ControllerPeak),
			share(row.FabricCPU), share(row.ControllerCPU), each(row.Home.Reads), each(row.Home.Lists), each(row.Home.Writes),
			each(row.Remote.Reads), each(row.Remote.Lists), each(row.Remote.Writes), row.Answers, mebibytes(row.Sent))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "restart in the last period: %s until a new pod was ready\n", short(r.Restart))
	return err
}
