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

// Report has the results of a run.
type Report struct {
	// Specs are the specs that ran to their end, with any result.
	Specs []Spec
	// Undeclared counts, by message, the specs that were skipped because the class lacks a
	// capability that only the spec itself can check.
	Undeclared map[string]int
}

// Spec is a test, or a failed step before or after all tests.
type Spec struct {
	Name   string
	Passed bool
	// IsStep means that it is no test.
	IsStep bool
	Took   time.Duration
	// Trouble is why it failed, with the end of its output.
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

// Reasons returns the messages of skipped specs, the most frequent first.
func (r Report) Reasons() string {
	var lines []string
	for reason, count := range r.Undeclared {
		lines = append(lines, fmt.Sprintf("%4d × %s", count, reason))
	}
	slices.Sort(lines)
	slices.Reverse(lines)
	return strings.Join(lines, "\n")
}

// spec has the fields of ginkgo's report that are used.
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

// common matches the common parts of the names of specs, and tags.
var common = regexp.MustCompile(`External Storage|\[Driver: [^]]*\]|\[(?:FeatureGate|Environment):[^]]*\]|` +
	`\[(?:sig-[a-z-]+|Alpha|Beta|Conformance|LinuxOnly|NodeConformance|Slow)\]|\[Testpattern: |\](?: |$)`)

// name returns a short name without slashes, which separate subtests in names of Go tests.
func (s spec) name() string {
	words := append(slices.Clone(s.ContainerHierarchyTexts), s.LeafNodeText)
	if s.LeafNodeType != "It" {
		words = []string{s.LeafNodeType}
	}
	short := common.ReplaceAllString(strings.Join(words, " "), " ")
	return strings.ReplaceAll(strings.Join(strings.Fields(short), " "), "/", "-")
}

// driverName matches the name of the driver in messages, and the common end of messages.
var driverName = regexp.MustCompile(`(?i)(driver )?"?storage\.liqo\.io"? ?|[ -]+skipping\.?$`)

func reason(message string) string {
	first, _, _ := strings.Cut(strings.TrimSpace(message), "\n")
	return driverName.ReplaceAllString(first, "")
}
