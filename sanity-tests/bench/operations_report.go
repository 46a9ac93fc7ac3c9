package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
)

// Components are the user agents that work for a class besides its driver. The sidecars of the real
// driver and of this one have the same names, so with a virtual class the figures include both.
var Components = append([]string{"kube-controller-manager", "snapshot-controller"}, Sidecars...)

// Series are the results of one operation on one class.
type Series struct {
	results []Result
	writes  map[string]int
}

// Add adds the result of one run and the API calls it caused.
func (s *Series) Add(result Result, calls map[string]Calls) {
	s.results = append(s.results, result)
	if s.writes == nil {
		s.writes = map[string]int{}
	}
	for _, agent := range append([]string{Agent}, Components...) {
		if writes := calls[agent].Writes; writes > 0 {
			s.writes[agent] += writes
		}
	}
}

func (s Series) Times() Times { return Summarize(s.results) }

// Writes returns the API writes per operation, by user agent.
func (s Series) Writes() map[string]float64 {
	count := 0
	for _, result := range s.results {
		count += len(result.Each)
	}
	each := map[string]float64{}
	for agent, writes := range s.writes {
		each[agent] = ratio(float64(writes), float64(count))
	}
	return each
}

// OperationRow compares an operation on volumes of the real class and of a virtual class that uses it.
type OperationRow struct {
	Operation string
	RealClass string
	// AtOnce is how many ran concurrently, Samples how many were measured.
	AtOnce, Samples int
	Goal            float64
	Real, Virtual   Times
	// RealWrites and VirtualWrites are the API writes per operation, by user agent.
	RealWrites, VirtualWrites map[string]float64
}

// P50Ratio is the ratio of the virtual class to the real one.
func (r OperationRow) P50Ratio() float64 {
	return ratio(r.Virtual.P50.Seconds(), r.Real.P50.Seconds())
}

func (r OperationRow) P99Ratio() float64 {
	return ratio(r.Virtual.P99.Seconds(), r.Real.P99.Seconds())
}

// Met reports whether the goal is met. It is about the medians.
func (r OperationRow) Met() bool { return r.P50Ratio() <= r.Goal }

func (r OperationRow) verdict() string {
	if r.Met() {
		return "met"
	}
	return "missed"
}

// MarshalJSON adds the ratios.
func (r OperationRow) MarshalJSON() ([]byte, error) {
	type plain OperationRow
	return json.Marshal(struct {
		plain
		P50Ratio, P99Ratio float64
		Met                bool
	}{plain(r), r.P50Ratio(), r.P99Ratio(), r.Met()})
}

// OperationsReport are the results of operations on existing volumes.
type OperationsReport struct {
	Rows []OperationRow
	// Skipped are the operations that were not measured, with the reason.
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
			row.Goal, row.verdict(), row.VirtualWrites[Agent], componentWrites(row.RealWrites), componentWrites(row.VirtualWrites))
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

func componentWrites(writes map[string]float64) (sum float64) {
	for _, component := range Components {
		sum += writes[component]
	}
	return sum
}
