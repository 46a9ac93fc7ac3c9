package driver

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"storage.liqo.io/sanity-tests/chart"
)

// Cargo rejects a workspace in which the folder of a member is missing.
func TestImageIsBuiltFromAllCrates(t *testing.T) {
	manifest, err := os.ReadFile("../../Cargo.toml")
	if err != nil {
		t.Fatal(err)
	}
	ignored, err := os.ReadFile("../../.dockerignore")
	if err != nil {
		t.Fatal(err)
	}
	members := regexp.MustCompile(`(?m)^members = \[(.*)\]$`).FindSubmatch(manifest)
	if members == nil {
		t.Fatal("Cargo.toml has no line members = […]")
	}
	for _, member := range strings.Split(string(members[1]), ", ") {
		folder, _, _ := strings.Cut(strings.Trim(member, `"`), "/")
		if !strings.Contains(string(ignored), "\n!"+folder+"\n") {
			t.Errorf(".dockerignore excludes %s, the folder of the crate %s", folder, member)
		}
	}
}

func TestImageIsTheOneOfTheChart(t *testing.T) {
	helm, err := chart.New(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rendered, err := helm.Render(t.Context(), chart.Release, chart.Namespace, withImage(repository+":content", nil))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(rendered), "image: "+repository+":content\n") != 3 {
		t.Errorf("controller, node plugin and helm test do not all run %s with the tag they are given", repository)
	}
}
