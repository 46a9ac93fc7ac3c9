package bench

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// RoomSample is what a virtual node offers, and what the nodes that it represents could take, in pods of one size.
type RoomSample struct {
	// Offered are those that the scheduler at home would still place on the virtual node, Placeable those that the one there
	// would still place on its nodes. Waiting pods are on the virtual node and on no node there.
	Offered, Placeable, Waiting int
}

// RoomReport is what a nearly full cluster offers.
type RoomReport struct {
	Nodes   int
	Took    time.Duration
	Samples []RoomSample
	// Pods were created at home; Placed have run there. Returns is how often one went back.
	Pods, Placed, Returns int
	// Preempted pods at home made room for others of a higher priority.
	Preempted int
	// NodeWrites are the driver's writes of Nodes.
	NodeWrites int
}

// Print writes the report as a table.
func (r RoomReport) Print(out io.Writer) error {
	fmt.Fprintf(out, "%d nodes, %s\n", r.Nodes, r.Took.Round(time.Second))
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "pods\tsmallest\tp50\tlargest\t")
	for _, row := range []struct {
		name string
		of   func(RoomSample) int
	}{
		{"offered", func(s RoomSample) int { return s.Offered }},
		{"placeable", func(s RoomSample) int { return s.Placeable }},
		{"offered and not placeable", func(s RoomSample) int { return max(0, s.Offered-s.Placeable) }},
		{"placeable and not offered", func(s RoomSample) int { return max(0, s.Placeable-s.Offered) }},
		{"waiting there", func(s RoomSample) int { return s.Waiting }},
	} {
		var all []int
		for _, sample := range r.Samples {
			all = append(all, row.of(sample))
		}
		if slices.Sort(all); len(all) > 0 {
			fmt.Fprintf(table, "%s\t%d\t%d\t%d\t\n", row.name, all[0], all[(len(all)-1)/2], all[len(all)-1])
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "%d pods, %d placed there, %d returns (%.2f per pod), %d preempted at home, %.1f writes of Nodes per minute\n",
		r.Pods, r.Placed, r.Returns, ratio(float64(r.Returns), float64(r.Pods)), r.Preempted, ratio(float64(r.NodeWrites), r.Took.Minutes()))
	return err
}
