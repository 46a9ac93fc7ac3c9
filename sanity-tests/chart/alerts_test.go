package chart

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

const prometheusOperator = "monitoring.coreos.com/v1/PodMonitor,monitoring.coreos.com/v1/PrometheusRule"

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

// Prometheus collects metrics from each pod of the driver.
func TestPodMonitorSelectsAllPods(t *testing.T) {
	var monitor struct {
		Metadata struct{ Labels map[string]string }
		Spec     struct {
			Selector            metav1.LabelSelector
			PodMetricsEndpoints []struct{ Port string }
		}
	}
	values := Values{"podMonitor": Values{"labels": Values{"release": "stack"}}, "fabric": Values{"enabled": true}}
	rendered, err := helm(t).RenderFor(t.Context(), Release, Namespace, prometheusOperator, values)
	if err != nil {
		t.Fatal(err)
	}
	for document := range strings.SplitSeq(string(rendered), "\n---\n") {
		if strings.Contains(document, "\nkind: PodMonitor\n") {
			if err := yaml.Unmarshal([]byte(document), &monitor); err != nil {
				t.Fatal(err)
			}
		}
	}
	if monitor.Metadata.Labels["release"] != "stack" || len(monitor.Spec.PodMetricsEndpoints) != 1 {
		t.Fatalf("the PodMonitor is %+v", monitor)
	}
	selector, err := metav1.LabelSelectorAsSelector(&monitor.Spec.Selector)
	if err != nil {
		t.Fatal(err)
	}
	objects := render(t, Values{"fabric": Values{"enabled": true}})
	templates := []corev1.PodTemplateSpec{only[*appsv1.DaemonSet](t, objects).Spec.Template}
	for _, name := range []string{"liqo-csi-controller", "liqo-csi-fabric"} {
		templates = append(templates, named[*appsv1.Deployment](t, objects, name).Spec.Template)
	}
	for _, template := range templates {
		ports := template.Spec.Containers[0].Ports
		named := func(port corev1.ContainerPort) bool { return port.Name == monitor.Spec.PodMetricsEndpoints[0].Port }
		if !selector.Matches(labels.Set(template.Labels)) || !slices.ContainsFunc(ports, named) {
			t.Errorf("no metrics of %v with the ports %v", template.Labels, ports)
		}
	}
	if rendered, err := helm(t).RenderFor(t.Context(), Release, Namespace, "v1", nil); err != nil || strings.Contains(string(rendered), "PodMonitor\n") {
		t.Errorf("a cluster without the kind gets one: %v", err)
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
