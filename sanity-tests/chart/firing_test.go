package chart

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"storage.liqo.io/sanity-tests/images"
)

// Series as in a unit test of the driver's metrics.
const (
	volumesLost = `liqo_csi_volumes{state="TwinLost",cluster="milan",storage_class="liqo"}`
	leader      = `liqo_csi_reconcile_leader{}`
	reachable   = `liqo_csi_remote_cluster_reachable{cluster="milan"}`
	expiry      = `liqo_csi_remote_token_expiry_timestamp_seconds{cluster="milan"}`
)

// of returns a series of volumes in another state.
func of(state string) string { return strings.Replace(volumesLost, "TwinLost", state, 1) }

// by returns a series as Prometheus scrapes it from a pod.
func by(pod, series string) string {
	return strings.Replace(strings.TrimSuffix(series, "}")+`,pod="`+pod+`"}`, "{,", "{", 1)
}

type firing struct {
	name, alert string
	// series have values in promtool's notation: one each minute, or for days one every five minutes.
	series map[string]string
	days   bool
	at     string
	// summary is that of the only alert that fires; empty if none does.
	summary string
}

var firings = []firing{
	{"lost volumes", "LiqoCsiDataAtRisk", map[string]string{volumesLost: "0 2x9"}, false, "1m",
		"2 volumes of class liqo in cluster milan are TwinLost"},
	{"deleted twins", "LiqoCsiDataAtRisk", map[string]string{of("TwinTerminating"): "1x9"}, false, "0m",
		"1 volumes of class liqo in cluster milan are TwinTerminating"},
	{"vanished twins", "LiqoCsiDataAtRisk", map[string]string{of("TwinVanished"): "1x9"}, false, "0m",
		"1 volumes of class liqo in cluster milan are TwinVanished"},
	{"superseded twins", "LiqoCsiDataAtRisk", map[string]string{of("TwinSuperseded"): "1x9"}, false, "0m",
		"1 volumes of class liqo in cluster milan are TwinSuperseded"},
	{"two replicas report it", "LiqoCsiDataAtRisk", map[string]string{by("a", volumesLost): "2x9", by("b", volumesLost): "2x9"},
		false, "1m", "2 volumes of class liqo in cluster milan are TwinLost"},
	{"no volume is lost any more", "LiqoCsiDataAtRisk", map[string]string{volumesLost: "2 0x9"}, false, "1m", ""},
	{"other states", "LiqoCsiDataAtRisk", map[string]string{of("TwinBound"): "2x9", of("TwinPending"): "1x9", of("Moving"): "1x9",
		of("ClusterUnreachable"): "1x9", of("TwinReturning"): "1x9", of("Ending"): "1x9"}, false, "9m", ""},

	{"no leader", "LiqoCsiControllerAbsent", map[string]string{leader: "1 0x20"}, false, "16m",
		"No replica of the controller leads, or its metrics are not collected"},
	{"no metrics", "LiqoCsiControllerAbsent", map[string]string{leader: "1 stale"}, false, "16m",
		"No replica of the controller leads, or its metrics are not collected"},
	{"another leader", "LiqoCsiControllerAbsent", map[string]string{by("a", leader): "1x8 0x10", by("b", leader): "0x13 1x5"}, false, "18m", ""},

	{"unreachable", "LiqoCsiVolumesUnavailable", map[string]string{of("ClusterUnreachable"): "3x20"}, false, "15m",
		"3 volumes of class liqo in cluster milan are ClusterUnreachable"},
	{"returning", "LiqoCsiVolumesUnavailable", map[string]string{of("TwinReturning"): "3x20"}, false, "15m",
		"3 volumes of class liqo in cluster milan are TwinReturning"},
	{"unreachable, for a short time", "LiqoCsiVolumesUnavailable", map[string]string{of("ClusterUnreachable"): "3x20"}, false, "14m", ""},
	{"unreachable, with a pause", "LiqoCsiVolumesUnavailable", map[string]string{of("ClusterUnreachable"): "3x8 0 3x8"}, false, "16m", ""},
	{"unreachable, with a new leader", "LiqoCsiVolumesUnavailable", map[string]string{
		by("a", of("ClusterUnreachable")): "3x8 stale", by("b", of("ClusterUnreachable")): "_x9 3x10"}, false, "15m",
		"3 volumes of class liqo in cluster milan are ClusterUnreachable"},
	{"other states", "LiqoCsiVolumesUnavailable", map[string]string{of("TwinBound"): "2x20", of("TwinLost"): "2x20"}, false, "16m", ""},

	{"unusable", "LiqoCsiRemoteClusterUnusable", map[string]string{reachable: "0x20"}, false, "15m",
		"The controller cannot create volumes in the remote cluster milan"},
	{"unusable, for a short time", "LiqoCsiRemoteClusterUnusable", map[string]string{reachable: "0x20"}, false, "14m", ""},
	{"usable", "LiqoCsiRemoteClusterUnusable", map[string]string{reachable: "1x20"}, false, "16m", ""},
	{"not declared any more", "LiqoCsiRemoteClusterUnusable", map[string]string{reachable: "0x8 stale"}, false, "16m", ""},

	// Time begins at 0. The first tokens are valid for 10, 4, 7 and 9 days, the others for an hour and for 40 minutes.
	{"not renewed", "LiqoCsiRemoteTokenNotRenewed", map[string]string{expiry: "864000x1500"}, true, "5d",
		"The token for the remote cluster milan expires in 5d 0h 0m 0s, and was not renewed"},
	{"expired", "LiqoCsiRemoteTokenNotRenewed", map[string]string{expiry: "345600x1500"}, true, "5d",
		"The token for the remote cluster milan expires in -1d 0h 0m 0s, and was not renewed"},
	{"not renewed, younger than four days", "LiqoCsiRemoteTokenNotRenewed", map[string]string{expiry: "604800x1500"}, true, "3d", ""},
	{"renewed after a third", "LiqoCsiRemoteTokenNotRenewed", map[string]string{expiry: "777600x863 1036800x863 1296000x9"}, true, "6d", ""},
	{"before it is renewed", "LiqoCsiRemoteTokenNotRenewed",
		map[string]string{expiry: "777600x863 1036800x863 1296000x9"}, true, "143h", ""},
	{"of an hour, not renewed", "LiqoCsiRemoteTokenNotRenewed", map[string]string{expiry: "3600x60"}, false, "36m",
		"The token for the remote cluster milan expires in 24m 0s, and was not renewed"},
	{"of 40 minutes, before it is renewed", "LiqoCsiRemoteTokenNotRenewed",
		map[string]string{expiry: "2400x12 3180x12 3960x12"}, false, "25m", ""},
	{"does not expire", "LiqoCsiRemoteTokenNotRenewed", map[string]string{reachable: "1x60"}, false, "60m", ""},
}

// Every alert fires in the case that it is for, and not otherwise, according to promtool of
// Debian's Prometheus.
func TestEveryAlertFiresWhenItShould(t *testing.T) {
	promtool := promtool(t)
	rule, _ := alerts(t, nil, prometheusOperator)
	folder := t.TempDir()
	write := func(name string, content any) string {
		text, err := json.Marshal(content) // JSON is YAML
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(folder, name)
		if err := os.WriteFile(file, text, 0o644); err != nil {
			t.Fatal(err)
		}
		return file
	}
	file := write("rules.yaml", rule.Spec)
	if out, err := exec.CommandContext(t.Context(), promtool, "check", "rules", "--lint=all", "--lint-fatal", file).CombinedOutput(); err != nil {
		t.Fatalf("promtool check rules: %v: %s", err, out)
	}
	sources := sourcesOf(t, filepath.Join(helm(t).chart, "..", "..", "..", "crates"))
	for _, series := range []string{volumesLost, reachable, expiry} {
		if !strings.Contains(sources, series) {
			t.Errorf("no test of the driver's metrics has the series %s", series)
		}
	}
	fires := map[string]bool{}
	for _, group := range rule.Spec.Groups {
		for _, alert := range group.Rules {
			fires[alert.Alert] = false
			for _, state := range regexp.MustCompile(`=~"(.*?)"`).FindAllStringSubmatch(alert.Expr, -1) {
				for name := range strings.SplitSeq(state[1], "|") {
					if !strings.Contains(sources, `=> "`+name+`",`) {
						t.Errorf("%s: the driver has no state %s", alert.Alert, name)
					}
				}
			}
		}
	}
	tests := map[string][]any{}
	for _, one := range firings {
		tests[one.interval()] = append(tests[one.interval()], one.promtoolTest(rule))
		fires[one.alert] = fires[one.alert] || one.summary != ""
	}
	for interval, tests := range tests {
		file := write("test.yaml", map[string]any{"rule_files": []string{"rules.yaml"}, "evaluation_interval": interval, "tests": tests})
		if out, err := exec.CommandContext(t.Context(), promtool, "test", "rules", file).CombinedOutput(); err != nil {
			t.Errorf("promtool test rules: %v: %s", err, out)
		}
	}
	for alert, is := range fires {
		if !is {
			t.Errorf("%s never fires", alert)
		}
	}
}

var label = regexp.MustCompile(`(\w+)="(.*?)"`)

// interval is how often Prometheus scrapes the series and evaluates the rules.
func (f firing) interval() string {
	if f.days {
		return "5m"
	}
	return "1m"
}

// promtoolTest returns the case in promtool's format.
func (f firing) promtoolTest(rule prometheusRule) any {
	var input []any
	labels := map[string]string{}
	for series, values := range f.series {
		input = append(input, map[string]string{"series": series, "values": values})
		for _, found := range label.FindAllStringSubmatch(series, -1) {
			labels[found[1]] = found[2]
		}
	}
	delete(labels, "pod")
	expected := []any{}
	for _, group := range rule.Spec.Groups {
		for _, alert := range group.Rules {
			if alert.Alert != f.alert || f.summary == "" {
				continue
			}
			labels["severity"] = alert.Labels["severity"]
			annotations := map[string]string{}
			for name, text := range alert.Annotations {
				annotations[name] = strings.ReplaceAll(text, "{{ $labels.cluster }}", labels["cluster"])
			}
			annotations["summary"] = f.summary
			expected = append(expected, map[string]any{"exp_labels": labels, "exp_annotations": annotations})
		}
	}
	return map[string]any{
		"name":         f.alert + ": " + f.name,
		"interval":     f.interval(),
		"input_series": input,
		"alert_rule_test": []any{map[string]any{
			"eval_time": f.at, "alertname": f.alert, "exp_alerts": expected,
		}},
	}
}

// promtool returns the path of promtool in Debian's package of Prometheus.
func promtool(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("apt-get"); err != nil {
		t.Skip("no apt-get on this machine")
	}
	packages, err := images.UnpackDebianAlone(t.Context(), runtime.GOARCH, "prometheus")
	if err != nil {
		t.Fatal(err)
	}
	program, err := packages.Program("promtool")
	if err != nil {
		t.Fatal(err)
	}
	return program
}
