package features

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	fenced  = regexp.MustCompile("(?ms)^[ \t]*```.*?^[ \t]*```[ \t]*$")
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *$`)
	link    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	// named matches pages of docs in code, messages and the chart.
	named    = regexp.MustCompile(`\bdocs/[A-Za-z0-9_/-]+\.md(?:#[a-z0-9-]+)?`)
	isLinked = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	dropped  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// skipped are folders without pages or sources of the project.
var skipped = map[string]bool{".git": true, "target": true, ".lab": true, "dist": true, "node_modules": true}

// Every link between pages refers to an existing file and heading, and so do pages that code,
// messages or the chart name.
func TestEveryLinkHasATarget(t *testing.T) {
	pages, links := 0, 0
	check := func(from, target string) {
		links++
		if err := resolveLink(from, target); err != nil {
			t.Errorf("%s: %v", from, err)
		}
	}
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if skipped[entry.Name()] {
				return filepath.SkipDir
			}
			return nil
		}
		name := strings.TrimPrefix(filepath.ToSlash(file), root)
		switch filepath.Ext(file) {
		case ".md":
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			pages++
			for _, found := range link.FindAllStringSubmatch(fenced.ReplaceAllString(string(text), ""), -1) {
				if !strings.Contains(found[1], "://") && !strings.HasPrefix(found[1], "mailto:") {
					check(name, found[1])
				}
			}
		case ".rs", ".go", ".yaml", ".toml", ".txt", ".tpl":
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			for _, found := range named.FindAllString(string(text), -1) {
				check(name, strings.Repeat("../", strings.Count(name, "/"))+found)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if pages < 20 || links < 200 {
		t.Errorf("%d pages have only %d links: check how this test parses them", pages, links)
	}
}

// resolveLink returns an error if the target of a link in a page does not exist.
func resolveLink(from, target string) error {
	file, anchor, _ := strings.Cut(target, "#")
	to := from
	if file != "" {
		to = path.Join(path.Dir(from), file)
	}
	text, err := os.ReadFile(root + to)
	if info, is := os.Stat(root + to); anchor == "" && is == nil && info.IsDir() {
		return nil
	}
	if err != nil {
		return fmt.Errorf("the file of the link %s does not exist", target)
	}
	if anchor != "" && !anchors(string(text))[anchor] {
		return fmt.Errorf("the link %s names no heading of %s", target, to)
	}
	return nil
}

// anchors returns the names that GitHub gives to the headings of a page.
func anchors(text string) map[string]bool {
	names, seen := map[string]bool{}, map[string]int{}
	for _, found := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		plain := isLinked.ReplaceAllString(found[1], "$1")
		name := strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(plain), ""), " ", "-")
		if seen[name]++; seen[name] > 1 {
			name = fmt.Sprintf("%s-%d", name, seen[name]-1)
		}
		names[name] = true
	}
	return names
}
