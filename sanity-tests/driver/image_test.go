package driver

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"storage.liqo.io/sanity-tests/chart"
)

// The lab cannot build the Dockerfile, so at least they must agree on what is in it.
func TestDockerfileHasTheSamePrograms(t *testing.T) {
	text, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^ARG TOOLS="(.*)"$`).FindSubmatch(text)
	if found == nil {
		t.Fatal(`the Dockerfile has no line ARG TOOLS="…"`)
	}
	if got, want := string(found[1]), strings.Join(Tools, " "); got != want {
		t.Errorf("the Dockerfile has %s, the lab %s", got, want)
	}
	program := regexp.MustCompile(`(?m)^COPY --from=build (.*)$`).FindAllSubmatch(text, -1)
	if want := "/src/target/release/liqo-csi " + Program; len(program) != 1 || string(program[0][1]) != want {
		t.Errorf("the Dockerfile copies %q, the lab has %s alone", program, want)
	}
	if want := `ENTRYPOINT ["` + Program + `"]`; !strings.Contains(string(text), want+"\n") {
		t.Errorf("the Dockerfile does not say %s", want)
	}
	// A build of the whole workspace would have features in it that only tests need.
	if want := "cargo build --locked --release --package liqo-csi\n"; !strings.Contains(string(text), want) {
		t.Errorf("the Dockerfile does not run %s", want)
	}
}

// Cargo refuses a workspace with a member whose folder the build of the image does not get.
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
			t.Errorf(".dockerignore leaves out %s, where the crate %s is", folder, member)
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
	if strings.Count(string(rendered), "image: "+repository+":content\n") != 2 {
		t.Errorf("controller and node plugin do not both run %s with the tag they are given", repository)
	}
}
