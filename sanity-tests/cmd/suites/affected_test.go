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
			t.Errorf("no line of the table says which lab tests a change of %s may break", path)
		}
	}
}

// A line that no file is below, or that names no test, is of a time that is over.
func TestEveryLineOfTheTableIsOfUse(t *testing.T) {
	all, _ := these(t)
	first := map[string]bool{}
	for _, path := range files(t) {
		line, _ := lineOf(path)
		first[line.prefix] = true
	}
	for _, line := range table {
		if !first[line.prefix] {
			t.Errorf("%s: no file is here for which this line is the first", line.prefix)
		}
		for _, some := range line.tests {
			if !slices.ContainsFunc(all, some.has) {
				t.Errorf("%s: suite %q has no test like %q", line.prefix, some.suite, some.pattern)
			}
		}
	}
}

// That a test runs when its own file is changed is not enough.
func TestEveryLabTestIsReachedFromWhatItTests(t *testing.T) {
	all, _ := these(t)
	reached := map[string]bool{}
	for _, line := range table {
		if line.own {
			continue
		}
		for _, some := range line.tests {
			for _, one := range filter(all, some.has) {
				reached[one.String()] = true
			}
		}
	}
	for _, one := range all {
		if !reached[one.String()] {
			t.Errorf("no line of the table reaches %s", one)
		}
	}
}

// Tests in a package that no suite names would never run.
func TestEveryTestOfE2EIsInASuite(t *testing.T) {
	all, _ := these(t)
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
