package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// go test ignores a name that no test has.
func TestSmokeTestsExist(t *testing.T) {
	files, err := filepath.Glob("../../e2e/driver/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var sources strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		sources.Write(text)
	}
	for _, name := range strings.Split(strings.Trim(smokeTests, "^()$"), "|") {
		if !strings.Contains(sources.String(), "func "+name+"(t *testing.T)") {
			t.Errorf("e2e/driver has no %s", name)
		}
	}
}
