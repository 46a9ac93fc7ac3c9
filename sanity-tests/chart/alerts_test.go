package chart

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const prometheusOperator = "monitoring.coreos.com/v1"

type prometheusRule struct {
	Kind     string
	Metadata struct{ Labels map[string]string }
	Spec     struct {
		Groups []struct {
			Name  string `json:"name"`
			Rules []struct {
				Alert       string            `json:"alert"`
				Expr        string            `json:"expr"`
				For         string            `json:"for,omitempty"`
				Labels      map[string]string `json:"labels"`
				Annotations map[string]string `json:"annotations"`
			} `json:"rules"`
		} `json:"groups"`
	}
}

// alerts returns the PrometheusRule that the chart renders for a cluster with these API versions,
// if any.
func alerts(t *testing.T, values Values, apiVersions string) (rule prometheusRule, found bool) {
	t.Helper()
	rendered, err := helm(t).RenderFor(t.Context(), Release, Namespace, apiVersions, values)
	if err != nil {
		t.Fatal(err)
	}
	for document := range strings.SplitSeq(string(rendered), "\n---\n") {
		if !strings.Contains(document, "\nkind: PrometheusRule\n") {
			continue
		}
		if err := yaml.Unmarshal([]byte(document), &rule); err != nil {
			t.Fatal(err)
		}
		found = true
	}
	return rule, found
}

func TestAlertsAreRenderedForPrometheusOperator(t *testing.T) {
	of := func(enabled any) Values { return Values{"prometheusRule": Values{"enabled": enabled}} }
	for name, one := range map[string]struct {
		values      Values
		apiVersions string
		want        bool
	}{
		"auto, with the kind":    {nil, prometheusOperator, true},
		"auto, without the kind": {nil, "v1", false},
		"on":                     {of(true), "v1", true},
		"off":                    {of(false), prometheusOperator, false},
		"in the other cluster":   {remote("full"), prometheusOperator, false},
	} {
		if _, found := alerts(t, one.values, one.apiVersions); found != one.want {
			t.Errorf("%s: rendered is %t", name, found)
		}
	}
	rule, _ := alerts(t, Values{"prometheusRule": Values{"labels": Values{"release": "stack"}}}, prometheusOperator)
	if rule.Metadata.Labels["release"] != "stack" {
		t.Errorf("the labels are %v", rule.Metadata.Labels)
	}
}

var metricName = regexp.MustCompile(`\bliqo_csi_[a-z_]+`)

// Each alert uses metrics that the driver exports and the documentation lists, and has a heading in
// that page with instructions. The test of links checks that the heading exists.
func TestEveryAlertHasMetricsAndInstructions(t *testing.T) {
	rule, _ := alerts(t, nil, prometheusOperator)
	root := filepath.Join(helm(t).chart, "..", "..", "..")
	documented, err := os.ReadFile(filepath.Join(root, "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	sources := sourcesOf(t, filepath.Join(root, "crates"))
	count := 0
	for _, group := range rule.Spec.Groups {
		for _, alert := range group.Rules {
			count++
			metrics := metricName.FindAllString(alert.Expr, -1)
			if len(metrics) == 0 {
				t.Errorf("%s uses no metric: %s", alert.Alert, alert.Expr)
			}
			for _, metric := range metrics {
				if !strings.Contains(sources, `"`+metric+`"`) {
					t.Errorf("%s: the driver has no metric %s", alert.Alert, metric)
				}
				if !strings.Contains(string(documented), "| `"+metric+"` |") {
					t.Errorf("%s: docs/operations.md does not list %s", alert.Alert, metric)
				}
			}
			if want := "docs/operations.md" + "#alert-" + strings.ToLower(alert.Alert); alert.Annotations["runbook"] != want {
				t.Errorf("%s has the runbook %q, and not %s", alert.Alert, alert.Annotations["runbook"], want)
			}
			if alert.Annotations["summary"] == "" || alert.Labels["severity"] == "" {
				t.Errorf("%s has no summary or no severity", alert.Alert)
			}
		}
	}
	if count < 4 {
		t.Errorf("only %d alerts were found", count)
	}
}

// sourcesOf returns all Rust sources in a folder.
func sourcesOf(t *testing.T, folder string) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(folder, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".rs" {
			return err
		}
		text, err := os.ReadFile(path)
		all.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}
