package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

func TestEverySourceIsInTheTable(t *testing.T) {
	for _, path := range files(t) {
		if ext := filepath.Ext(path); ext != ".rs" && ext != ".go" {
			continue
		}
		if _, found := lineOf(path); !found {
			t.Errorf("no line of the table matches %s", path)
		}
	}
}

// A line that matches no file, or no test, is outdated.
func TestEveryLineOfTheTableMatches(t *testing.T) {
	all, _ := repositoryTests(t)
	first := map[string]bool{}
	for _, path := range files(t) {
		line, _ := lineOf(path)
		first[line.prefix] = true
	}
	for _, line := range table {
		if !first[line.prefix] {
			t.Errorf("%s: this line is the first match of no file", line.prefix)
		}
		for _, some := range line.tests {
			if !slices.ContainsFunc(all, some.has) {
				t.Errorf("%s: suite %q has no test like %q", line.prefix, some.suite, some.pattern)
			}
		}
	}
}

// A test must also run when what it tests has changed, and not only when its own file has.
func TestEveryLabTestIsSelectedByTheTable(t *testing.T) {
	all, _ := repositoryTests(t)
	reached := map[string]bool{}
	for _, line := range table {
		if line.own {
			continue
		}
		for _, some := range line.tests {
			for _, test := range filter(all, some.has) {
				reached[test.String()] = true
			}
		}
	}
	for _, test := range all {
		if !reached[test.String()] {
			t.Errorf("no line of the table selects %s", test)
		}
	}
}

// Tests in a package that no suite has would never run.
func TestEveryTestOfE2EIsInASuite(t *testing.T) {
	all, _ := repositoryTests(t)
	function := regexp.MustCompile(`(?m)^func (Test\w*)\(\w+ \*testing\.T\)`)
	for _, path := range files(t) {
		if !isBelow(path, "sanity-tests/e2e") || isBelow(path, "sanity-tests/e2e/user") || filepath.Ext(path) != ".go" {
			continue
		}
		text, err := os.ReadFile(filepath.Join("../../..", path))
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range function.FindAllSubmatch(text, -1) {
			name := string(match[1])
			if !slices.ContainsFunc(all, func(one labTest) bool { return one.function == name && slices.Contains(one.files, path) }) {
				t.Errorf("%s: no suite has %s", path, name)
			}
		}
	}
}
