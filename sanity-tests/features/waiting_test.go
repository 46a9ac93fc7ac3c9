package features

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

var (
	waitingState = regexp.MustCompile(`state:\s+"(.*)"`)
	wordsOf      = map[string]*regexp.Regexp{
		"event":     regexp.MustCompile(`event:\s+\[\]string\{(.*?)\}`),
		"condition": regexp.MustCompile(`condition: ("\w+")`),
		"doctor":    regexp.MustCompile(`doctor:\s+\[\]string\{(.*?)\}`),
	}
	goString = regexp.MustCompile(`"(.*?)"`)
)

// The table of states in which a claim waits lists those of TestWaitingClaimsReportTheReason, with the
// words that this test expects.
func TestReasonsForWaitingClaimsAreListed(t *testing.T) {
	source, err := os.ReadFile("../e2e/remote/waiting_test.go")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(root + "docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "| a claim waits because |")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := map[string][]string{}
	for line := range strings.Lines(table) {
		if cells := strings.Split(line, "|"); len(cells) == 6 {
			rows[strings.TrimSpace(cells[1])] = cells
		}
	}
	delete(rows, "---")
	found := waitingState.FindAllStringSubmatchIndex(string(source), -1)
	if len(found) < 10 || len(found) != len(rows) {
		t.Errorf("the test has %d states, and the table %d", len(found), len(rows))
	}
	for n, at := range found {
		end := len(source)
		if n+1 < len(found) {
			end = found[n+1][0]
		}
		name, body := string(source[at[2]:at[3]]), string(source[at[1]:end])
		row, is := rows[name]
		if !is {
			t.Errorf("the table lacks %q", name)
			continue
		}
		event, condition, doctor := row[2], row[3], row[4]
		if strings.TrimSpace(doctor) == "the same" {
			doctor = event
		}
		for column, cell := range map[string]string{"event": event, "condition": condition, "doctor": doctor} {
			words := goString.FindAllStringSubmatch(strings.Join(wordsOf[column].FindStringSubmatch(body), ""), -1)
			for _, word := range words {
				if !strings.Contains(cell, word[1]) {
					t.Errorf("%s: %s has no %q: %s", name, column, word[1], cell)
				}
			}
			if column != "event" && len(words) == 0 && !strings.Contains("– nothing", strings.TrimSpace(cell)) {
				t.Errorf("%s: no test expects the %s %s", name, column, cell)
			}
		}
	}
}
