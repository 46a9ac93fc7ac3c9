package driver

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"storage.liqo.io/sanity-tests/chart"
)

// The lab cannot build the Dockerfile, so at least they must agree on what is in it.
func TestDockerfileHasTheSameTools(t *testing.T) {
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
}

func TestImageIsTheOneOfTheChart(t *testing.T) {
	helm, err := chart.New(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rendered, err := helm.Render(t.Context(), chart.Release, chart.Namespace, withImage("content", nil))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(rendered), "image: "+imageName+":"+imageTag+"\n") != 2 {
		t.Errorf("controller and node plugin do not both run %s:%s", imageName, imageTag)
	}
	if strings.Count(string(rendered), "lab.liqo.io/build: content\n") != 2 {
		t.Error("pods do not follow the content of the image")
	}
}
