package features

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// statementsPage is the page with the table of the tests that prove the statements of Liqo's
// documentation on offloading.
const statementsPage = root + "docs/offloading-liqo.md"

var (
	quoted       = regexp.MustCompile("`((?:Test)?[A-Za-z0-9_]+)`")
	rustFunction = regexp.MustCompile(`(?m)#\[(?:tokio::)?test[^\]]*\]\s*(?:async )?fn ([a-z0-9_]+)\(`)
)

// Each statement names existing tests, of the suite or of the driver.
func TestEveryStatementHasATest(t *testing.T) {
	known := map[string]bool{}
	for _, suite := range []string{"e2e/offload", "chart"} {
		for name := range sources(t, suite) {
			known[name] = true
		}
	}
	for name := range rustTests(t) {
		known[name] = true
	}
	text, err := os.ReadFile(statementsPage)
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "|---|---|---|\n")
	rows := strings.Split(strings.TrimSpace(table), "\n")
	if len(rows) < 20 {
		t.Fatalf("%s has %d rows", statementsPage, len(rows))
	}
	for _, row := range rows {
		cells := strings.Split(strings.Trim(row, "|"), "|")
		if len(cells) != 3 {
			t.Fatalf("the row %q has %d cells", row, len(cells))
		}
		shown := quoted.FindAllStringSubmatch(cells[1], -1)
		if len(shown) == 0 {
			t.Errorf("%s: no test is named", cells[0])
		}
		for _, name := range append(shown, testName.FindAllStringSubmatch(cells[2], -1)...) {
			if !known[name[1]] {
				t.Errorf("%s: there is no test %s", cells[0], name[1])
			}
		}
	}
}

// rustTests returns the names of all Rust tests.
func rustTests(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, folder := range []string{"src", "crates"} {
		err := filepath.WalkDir(root+folder, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".rs") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, match := range rustFunction.FindAllStringSubmatch(string(text), -1) {
				found[match[1]] = true
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}
