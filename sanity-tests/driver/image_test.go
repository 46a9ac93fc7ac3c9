package driver

import (
	"strings"
	"testing"

	"storage.liqo.io/sanity-tests/chart"
)

func TestImageMatchesTheChart(t *testing.T) {
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
