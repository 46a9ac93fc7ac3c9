package external

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Report is what came of a run.
type Report struct {
	// Specs are those that ran to an end, whatever end.
	Specs []Spec
	// Undeclared counts the specs that found, when they were to run, that the class is
	// not said to be capable of what they need, by what they said.
	Undeclared map[string]int
}

// Spec is one test, or a step before or after all of them that failed.
type Spec struct {
	Name   string
	Passed bool
	// IsStep says that it is no test.
	IsStep bool
	Took   time.Duration
	// Trouble is why it failed, with the end of what it said.
	Trouble string
}

// Failed counts the specs that failed.
func (r Report) Failed() int {
	failed := 0
	for _, spec := range r.Specs {
		if !spec.Passed {
			failed++
		}
	}
	return failed
}

// Skipped counts the specs that apply to other classes only.
func (r Report) Skipped() int {
	skipped := 0
	for _, count := range r.Undeclared {
		skipped += count
	}
	return skipped
}

// Reasons are what specs said that skipped themselves, the most frequent first.
func (r Report) Reasons() string {
	var lines []string
	for reason, count := range r.Undeclared {
		lines = append(lines, fmt.Sprintf("%4d × %s", count, reason))
	}
	slices.Sort(lines)
	slices.Reverse(lines)
	return strings.Join(lines, "\n")
}

// spec is what ginkgo writes about one, as far as we read it.
type spec struct {
	ContainerHierarchyTexts    []string
	LeafNodeType               string
	LeafNodeText               string
	State                      string
	RunTime                    time.Duration
	CapturedGinkgoWriterOutput string
	Failure                    *struct{ Message string }
}

func readReport(file string) (Report, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return Report{}, fmt.Errorf("read the report: %w", err)
	}
	var suites []struct{ SpecReports []spec }
	if err := json.Unmarshal(content, &suites); err != nil {
		return Report{}, fmt.Errorf("read the report: %w", err)
	}
	report := Report{Undeclared: map[string]int{}}
	for _, suite := range suites {
		for _, spec := range suite.SpecReports {
			report.add(spec)
		}
	}
	return report, nil
}

func (r *Report) add(s spec) {
	switch {
	case s.State == "pending", s.State == "skipped" && s.Failure == nil:
		return // out of focus
	case s.State == "skipped":
		r.Undeclared[reason(s.Failure.Message)]++
		return
	case s.State == "passed" && s.LeafNodeType != "It":
		return
	}
	ended := Spec{Name: s.name(), Passed: s.State == "passed", IsStep: s.LeafNodeType != "It", Took: s.RunTime}
	if !ended.Passed {
		ended.Trouble = s.State + "\n"
		if s.Failure != nil {
			ended.Trouble += s.Failure.Message + "\n"
		}
		// After the namespace's events come long descriptions of every node.
		said, _, _ := strings.Cut(s.CapturedGinkgoWriterOutput, "Logging node info")
		ended.Trouble += string(tail([]byte(said)))
	}
	r.Specs = append(r.Specs, ended)
}

// common is what the names of all specs have in common, and tags.
var common = regexp.MustCompile(`External Storage|\[Driver: [^]]*\]|\[(?:FeatureGate|Environment):[^]]*\]|` +
	`\[(?:sig-[a-z-]+|Alpha|Beta|Conformance|LinuxOnly|NodeConformance|Slow)\]|\[Testpattern: |\](?: |$)`)

// name is short, and without a slash, which the names of Go's tests give a meaning.
func (s spec) name() string {
	words := append(slices.Clone(s.ContainerHierarchyTexts), s.LeafNodeText)
	if s.LeafNodeType != "It" {
		words = []string{s.LeafNodeType}
	}
	short := common.ReplaceAllString(strings.Join(words, " "), " ")
	return strings.ReplaceAll(strings.Join(strings.Fields(short), " "), "/", "-")
}

// driverName is that of the driver, as messages quote it, and what all of them end with.
var driverName = regexp.MustCompile(`(?i)(driver )?"?storage\.liqo\.io"? ?|[ -]+skipping\.?$`)

func reason(message string) string {
	first, _, _ := strings.Cut(strings.TrimSpace(message), "\n")
	return driverName.ReplaceAllString(first, "")
}
