package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
)

// Components are the programs that work for a class beside its driver. Those of the real
// class and those beside our controller are of the same names, so with a virtual class
// the figures are of both.
var Components = append([]string{"kube-controller-manager", "snapshot-controller"}, Sidecars...)

// Series is what was seen of one operation on one class.
type Series struct {
	heats  []Heat
	writes map[string]int
}

// Add notes one more heat and the calls it led to.
func (s *Series) Add(heat Heat, calls map[string]Calls) {
	s.heats = append(s.heats, heat)
	if s.writes == nil {
		s.writes = map[string]int{}
	}
	for _, agent := range append([]string{Agent}, Components...) {
		if its := calls[agent]; its.Writes > 0 {
			s.writes[agent] += its.Writes
		}
	}
}

// Times sum up the series.
func (s Series) Times() Times { return Summary(s.heats) }

// Writes are the API writes for one operation, by user agent.
func (s Series) Writes() map[string]float64 {
	count := 0
	for _, heat := range s.heats {
		count += len(heat.Each)
	}
	each := map[string]float64{}
	for agent, writes := range s.writes {
		each[agent] = ratio(float64(writes), float64(count))
	}
	return each
}

// OperationRow is one operation on volumes of the real class and on those of a virtual
// class above it.
type OperationRow struct {
	Operation string
	RealClass string
	// AtOnce is how many were under way at a time; Samples how many there were.
	AtOnce, Samples int
	Goal            float64
	Real, Virtual   Times
	// RealWrites are the API writes for each on the real class alone, VirtualWrites all
	// those on the virtual class, by user agent.
	RealWrites, VirtualWrites map[string]float64
}

// P50Ratio is how many times as long it takes on the virtual class: the ratio of the medians.
func (r OperationRow) P50Ratio() float64 {
	return ratio(r.Virtual.P50.Seconds(), r.Real.P50.Seconds())
}

// P99Ratio is that of the slowest.
func (r OperationRow) P99Ratio() float64 {
	return ratio(r.Virtual.P99.Seconds(), r.Real.P99.Seconds())
}

// Met says whether the goal is, which is about the medians.
func (r OperationRow) Met() bool { return r.P50Ratio() <= r.Goal }

func (r OperationRow) verdict() string {
	if r.Met() {
		return "met"
	}
	return "missed"
}

// MarshalJSON writes the ratios too.
func (r OperationRow) MarshalJSON() ([]byte, error) {
	type plain OperationRow
	return json.Marshal(struct {
		plain
		P50Ratio, P99Ratio float64
		Met                bool
	}{plain(r), r.P50Ratio(), r.P99Ratio(), r.Met()})
}

// OperationsReport is what was measured of volumes that were there.
type OperationsReport struct {
	Rows []OperationRow
	// Skipped says of what was not measured why.
	Skipped []string
}

// Print writes the report as a table.
func (r OperationsReport) Print(out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "operation\treal class\tat once\tsamples\treal p50\tp99\tliqo p50\tp99\tratio p50\tratio p99\tgoal\tliqo-csi's writes\tcomponents' alone\twith liqo\t")
	for _, row := range r.Rows {
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\t%.2f\t%.2f\t%.1f %s\t%.1f\t%.1f\t%.1f\t\n",
			row.Operation, row.RealClass, row.AtOnce, row.Samples,
			short(row.Real.P50), short(row.Real.P99), short(row.Virtual.P50), short(row.Virtual.P99), row.P50Ratio(), row.P99Ratio(),
			row.Goal, row.verdict(), row.VirtualWrites[Agent], ofComponents(row.RealWrites), ofComponents(row.VirtualWrites))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, line := range r.Skipped {
		if _, err := fmt.Fprintln(out, "not measured:", line); err != nil {
			return err
		}
	}
	return nil
}

func ofComponents(writes map[string]float64) (sum float64) {
	for _, component := range Components {
		sum += writes[component]
	}
	return sum
}
