package main

import (
	"strings"
	"testing"
	"time"

	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/faults"
)

func TestUpFlags(t *testing.T) {
	options, withStorage, err := parseUp([]string{"--clusters", "home,third", "--home-nodes", "3", "--home-quick-nodes", "1", "--home-port", "16443"})
	want := []clusters.ClusterSpec{{Name: "home", Nodes: 3, QuickNodes: 1, Port: 16443}, {Name: "third", Nodes: 1}}
	if err != nil || len(options.Clusters) != 2 || options.Clusters[0] != want[0] || options.Clusters[1] != want[1] {
		t.Errorf("%+v, %v", options.Clusters, err)
	}
	if !withStorage {
		t.Error("a lab without storage although this was not requested")
	}
	if _, _, err := parseUp([]string{"now"}); err == nil {
		t.Error("an unknown argument is accepted")
	}
}

func TestFaultFlags(t *testing.T) {
	got, err := parseFaults([]string{"delay", "--up", "2s"})
	if err != nil || got != (faults.Setting{Mode: faults.Delay, Up: 2 * time.Second}) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := parseFaults([]string{"hang", "--up", "2s"}); err == nil {
		t.Error("a hang with a delay is accepted")
	}
}

func TestUsageListsAllCommands(t *testing.T) {
	for _, arguments := range [][]string{nil, {"explode"}} {
		err := run(t.Context(), arguments)
		if err == nil || !strings.Contains(err.Error(), "lab partition") {
			t.Errorf("%v: %v", arguments, err)
		}
	}
}
