package features

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	loopName   = regexp.MustCompile(`const NAME: &'static str = "([a-z_-]+)";`)
	metricName = regexp.MustCompile(`registry\.register(?:_with_unit)?\(\s*"([a-z_]+)"`)
)

// The pages with the lists of loops and metrics list all of them.
func TestLoopsAndMetricsAreListed(t *testing.T) {
	for page, listed := range map[string]struct {
		name   *regexp.Regexp
		least  int
		quoted func(name string) string
	}{
		"docs/architecture.md": {loopName, 20, func(name string) string { return "`" + name + "`" }},
		// Prometheus adds the unit and _total.
		"docs/operations.md": {metricName, 15, func(name string) string { return "| `" + name }},
	} {
		text, err := os.ReadFile(root + page)
		if err != nil {
			t.Fatal(err)
		}
		names := namesInCrates(t, listed.name)
		if len(names) < listed.least {
			t.Errorf("only %d names for %s: %v", len(names), page, names)
		}
		for _, name := range names {
			if !strings.Contains(string(text), listed.quoted(name)) {
				t.Errorf("%s does not list %s", page, name)
			}
		}
	}
}

// namesInCrates returns the matches in the sources of the crates, without tests.
func namesInCrates(t *testing.T, name *regexp.Regexp) (found []string) {
	t.Helper()
	err := filepath.WalkDir(root+"crates", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".rs") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		code, _, _ := strings.Cut(string(text), "\nmod tests {")
		for _, match := range name.FindAllStringSubmatch(code, -1) {
			found = append(found, match[1])
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
