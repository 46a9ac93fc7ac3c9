package main

import (
	"cmp"
	"fmt"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
)

// selection selects the tests of a suite whose names match a pattern; "" matches all.
type selection struct{ suite, pattern string }

var compiled = map[string]*regexp.Regexp{} // patterns of selections

// tableLine maps a path prefix to the lab tests that a change below it may break, besides the core.
type tableLine struct {
	prefix string
	tests  []selection
	// own: the tests in the changed file; if it has none, all tests of its suite.
	own bool
}

const (
	movesAtHome = "Move"
	movesFaults = "move"
	expansion   = "Grow|Expan|Size|Quota"
	copies      = "Snapshot|Clone|Copi|Copy|Restore|VolumeMode|Populat|PrimeClaim"
	rights      = "Rights|Role|Restricted|PoliciesApply|Liqo"
)

var (
	moves = []selection{{"move", ""}, {"driver", movesAtHome}, {"remote", movesAtHome}, {"faults", movesFaults}, {"liqo", movesAtHome}}

	imports  = []selection{{"driver", "Import|Adopt"}, {"faults", "import"}}
	releases = []selection{{"driver", "Release"}, {"remote", "Release"}, {"faults", "release"}}
	snapshot = []selection{{"driver", copies}, {"remote", copies}, {"faults", "snapshot|restore"}}
	growth   = []selection{{"driver", expansion + "|AllowedClasses"}, {"remote", expansion}, {"faults", "grows"}}
	modified = []selection{{"driver", "Attributes"}, {"remote", "Attributes"}, {"faults", "attributes"}}
	capacity = []selection{{"driver", "Node|Cordon"}, {"remote", "Capacity|Full|Quota|Refus"}, {"faults", "capacity|refuses"}}
	deletion = []selection{{"driver", "Delet|Retain|Claim|Recovered"}, {"remote", "Delet|Retain|Claim"}, {"faults", "retain|deleted"}}

	offloading = []selection{{"offload", ""}, {"faults", "FabricWithCrash"}}
	reflection = []selection{{"offload", "Copied|Service|Quick|Manifests"}}
	remotePods = []selection{{"offload", "Pod|Job|Database"}, {"faults", "FabricWithCrash.*pods"}, {"node conformance", ""}}
	everywhere = []selection{{"driver", ""}, {"remote", ""}, {"faults", ""}}
	remoteSide = []selection{{"remote", ""}, {"faults", "another_cluster|FaultsBetween"}}
	connects   = []selection{{"remote", "Connect|Session"}, {"pages", "TwoClusters"}}
	k8sTests   = []selection{{"external storage", ""}, {"node conformance", ""}}
	lab        = []selection{{"lab", ""}, {"storage", ""}, {"fabric", ""}}
)

// coreOnly is for paths that unit tests and the core cover well enough.
var coreOnly []selection

// table: the first line whose prefix matches counts. A path that no line matches is not a source,
// and does not affect lab tests.
var table = []tableLine{
	{prefix: "crates/fabric/src/streams/", tests: []selection{{"offload", "StreamsReach|OwnPods"}}},
	{prefix: "crates/fabric/src/reflect/", tests: reflection},
	{prefix: "crates/fabric/src/node/", tests: []selection{{"offload", "Node|AtMostOnce|DaemonSet|Unoffload"}, {"faults", "FabricWithCrash.*node_of"}}},
	{prefix: "crates/fabric/src/pods/", tests: remotePods},
	{prefix: "crates/fabric/src/rights", tests: []selection{{"offload", "Restricted|PoliciesApply|Rights"}}},
	{prefix: "crates/fabric/src/", tests: offloading},
	{prefix: "crates/model/src/offload/reflection/", tests: reflection},
	{prefix: "crates/model/src/offload/network", tests: []selection{{"offload", "Service|Database"}}},
	{prefix: "crates/model/src/offload/pods/", tests: remotePods},
	{prefix: "crates/model/src/offload/", tests: offloading},
	{prefix: "crates/cluster/src/api/fabric", tests: offloading},
	{prefix: "crates/cluster/src/api/namespace_offloading", tests: offloading},
	{prefix: "src/cli/fabric", tests: offloading},
	{prefix: "src/cli/offload", tests: []selection{{"offload", "Offload|Strategy|Refused|Printed"}}},
	{prefix: "src/cli/unoffload", tests: []selection{{"offload", "Unoffload|Volumes|Owner"}, {"liqo", "Unoffload|Offloaded"}}},

	{prefix: "crates/model/manifests/remote-", tests: connects},
	{prefix: "crates/model/src/access/", tests: connects},
	{prefix: "crates/controllers/src/sessions", tests: connects},
	{prefix: "src/cli/connect", tests: connects},
	{prefix: "src/cli/disconnect", tests: connects},

	{prefix: "mover/", tests: moves},
	{prefix: "crates/moves/src/relay/", tests: moves},
	{prefix: "crates/moves/src/gate", tests: moves},
	{prefix: "crates/moves/src/movers", tests: moves},
	{prefix: "crates/twin/src/moves", tests: moves},
	{prefix: "crates/controllers/src/moves", tests: moves},
	{prefix: "crates/model/src/placement/moving/", tests: moves},
	{prefix: "crates/model/src/volume/moving", tests: moves},
	{prefix: "crates/model/src/volume/epoch", tests: moves},
	{prefix: "crates/cluster/src/api/volume_move", tests: moves},
	{prefix: "src/cli/moves", tests: moves},
	{prefix: "src/cli/relay", tests: moves},

	{prefix: "crates/transfer/src/release/", tests: releases},
	{prefix: "crates/model/src/volume/release", tests: releases},
	{prefix: "src/cli/release", tests: releases},
	{prefix: "crates/transfer/src/", tests: slices.Concat(imports, releases)},
	{prefix: "crates/model/src/placement/transfer/", tests: slices.Concat(imports, releases)},
	{prefix: "crates/model/src/volume/transfer", tests: slices.Concat(imports, releases)},
	{prefix: "crates/model/src/volume/snapshot_import", tests: imports},
	{prefix: "crates/controllers/src/imported", tests: imports},
	{prefix: "crates/twin/src/adopt", tests: imports},
	{prefix: "crates/model/src/placement/adopt", tests: imports},
	{prefix: "src/cli/import", tests: imports},

	{prefix: "crates/twin/src/snapshot/", tests: snapshot},
	{prefix: "crates/twin/src/source", tests: snapshot},
	{prefix: "crates/model/src/placement/snapshot", tests: snapshot},
	{prefix: "crates/model/src/placement/source", tests: snapshot},
	{prefix: "src/csi/snapshots", tests: append([]selection{{"csi-sanity", ""}}, snapshot...)},
	{prefix: "crates/cluster/src/cluster/snapshots", tests: snapshot},
	{prefix: "crates/model/src/volume/snapshot", tests: snapshot},
	{prefix: "crates/model/src/volume/restore_topology", tests: snapshot},
	{prefix: "crates/controllers/src/snapshot", tests: snapshot},
	{prefix: "crates/controllers/src/sources", tests: snapshot},

	{prefix: "crates/twin/src/expand", tests: growth},
	{prefix: "crates/model/src/placement/expand", tests: growth},
	{prefix: "crates/model/src/volume/size", tests: growth},
	{prefix: "crates/model/src/volume/claim_size", tests: growth},
	{prefix: "crates/model/src/volume/quantity", tests: growth},
	{prefix: "crates/twin/src/attributes", tests: modified},
	{prefix: "crates/twin/src/changing", tests: modified},
	{prefix: "crates/model/src/placement/modify", tests: modified},
	{prefix: "crates/twin/src/available_capacity", tests: capacity},
	{prefix: "crates/twin/src/refusals", tests: capacity},
	{prefix: "crates/model/src/volume/refused", tests: capacity},
	{prefix: "crates/model/src/placement/capacity", tests: capacity},
	{prefix: "crates/model/src/placement/fit", tests: capacity},
	{prefix: "crates/controllers/src/capacity", tests: capacity},
	{prefix: "crates/model/src/topology/", tests: capacity},
	{prefix: "crates/twin/src/delete", tests: deletion},
	{prefix: "crates/twin/src/reclaim", tests: deletion},
	{prefix: "crates/twin/src/finalizer", tests: deletion},
	{prefix: "crates/twin/src/claimed", tests: deletion},
	{prefix: "crates/model/src/placement/delete", tests: deletion},
	{prefix: "crates/model/src/placement/reclaim", tests: deletion},
	{prefix: "crates/model/src/volume/reclaim", tests: deletion},
	{prefix: "crates/controllers/src/orphans", tests: deletion},
	{prefix: "crates/controllers/src/recovery", tests: deletion},
	{prefix: "crates/controllers/src/retention", tests: deletion},
	{prefix: "crates/twin/src/remote_", tests: remoteSide},

	{prefix: "crates/node/src/forgotten", tests: []selection{{"faults", "Forgets|OutOfService|Kills"}}},
	{prefix: "crates/node/src/", tests: []selection{{"driver", ""}, {"faults", "attached|static|Forgets|OutOfService|Kills"}, {"csi-sanity", ""}, {"external storage", ""}}},
	{prefix: "src/csi/node", tests: []selection{{"driver", ""}, {"csi-sanity", ""}, {"external storage", ""}}},
	{prefix: "src/csi/", tests: []selection{{"driver", ""}, {"csi-sanity", ""}, {"external storage", ""}}},
	{prefix: "crates/wire/", tests: []selection{{"csi-sanity", ""}}},
	{prefix: "proto/", tests: []selection{{"csi-sanity", ""}}},

	{prefix: "crates/cluster/src/fleet/liqo", tests: []selection{{"remote", "Liqo"}, {"liqo", ""}}},
	{prefix: "crates/cluster/src/fleet/kosmos", tests: []selection{{"remote", "Kosmos"}, {"offload", "Kosmos"}}},
	{prefix: "crates/cluster/src/fleet/kubeconfig", tests: []selection{{"remote", "Kubeconfig|Hostile|Identity|Rights|Role"}}},
	{prefix: "crates/cluster/src/fleet/", tests: remoteSide},
	{prefix: "crates/cluster/src/cluster/rights", tests: []selection{{"remote", rights}, {"offload", rights}}},
	{prefix: "crates/cluster/src/cluster/evict", tests: []selection{{"offload", "Unoffload|Evict|Owner"}, {"driver", movesAtHome}, {"faults", movesFaults}}},
	{prefix: "crates/cluster/src/cluster/", tests: remoteSide},
	{prefix: "crates/twin/src/claim_copy", tests: []selection{{"remote", "Kosmos"}}},
	{prefix: "crates/twin/src/mirrored", tests: []selection{{"remote", "Kosmos"}}},
	{prefix: "sanity-tests/fabric/kosmosclaims", tests: []selection{{"remote", "Kosmos"}}},
	{prefix: "crates/controllers/src/clusters", tests: remoteSide},
	{prefix: "crates/controllers/src/virtual_nodes", tests: remoteSide},
	{prefix: "crates/controllers/src/by_cluster", tests: remoteSide},
	{prefix: "crates/controllers/src/mirror", tests: remoteSide},
	{prefix: "crates/controllers/src/attachments", tests: []selection{{"driver", ""}, {"faults", "attached|OutOfService|Kills"}}},
	{prefix: "crates/controllers/src/health", tests: []selection{{"driver", "Doctor|VolumesShows"}, {"remote", "Shown"}}},
	{prefix: "crates/controllers/src/serving", tests: []selection{{"offload", "StreamsReach|OwnPods"}}},
	{prefix: "crates/controllers/src/metrics", tests: coreOnly},
	{prefix: "src/inspect/", tests: []selection{{"driver", "Doctor|VolumesShows|Blocker"}, {"remote", "Shown|LimitOf"}}},
	{prefix: "src/cli/doctor", tests: []selection{{"driver", "Doctor|HelmTest"}}},
	{prefix: "src/cli/volumes", tests: []selection{{"driver", "VolumesShows"}}},
	{prefix: "src/cli/clusters", tests: []selection{{"remote", "Shown"}}},
	{prefix: "crates/observe/src/crash", tests: []selection{{"faults", "CrashAtEveryPoint"}}},
	{prefix: "crates/model/src/placement/", tests: everywhere},
	{prefix: "crates/twin/src/", tests: everywhere},
	{prefix: "crates/model/src/volume/", tests: everywhere},
	{prefix: "crates/controllers/src/", tests: everywhere},
	{prefix: "crates/cluster/src/lease", tests: everywhere},
	{prefix: "crates/cluster/src/queue", tests: everywhere},
	{prefix: "crates/cluster/src/api/remote_cluster", tests: []selection{{"remote", "Contradictory|SpecOf|WithItsRemoteCluster"}}},
	{prefix: "src/", tests: coreOnly},
	{prefix: "crates/", tests: coreOnly},
	{prefix: "build.rs", tests: coreOnly},
	{prefix: "tests/", tests: coreOnly},

	{prefix: "deploy/chart/", tests: slices.Concat([]selection{{"driver", "Reinstall|Doctor|HelmTest|OneValue"}, {"remote", rights}, {"offload", rights}}, connects)},

	{prefix: "README.md", tests: []selection{{"pages", "Readme"}}},
	{prefix: "docs/gitops.md", tests: []selection{{"pages", "GitOps"}}},
	{prefix: "docs/remote/two-clusters.md", tests: []selection{{"pages", "TwoClusters"}}},
	{prefix: "sanity-tests/pages/", tests: []selection{{"pages", ""}}},

	{prefix: "sanity-tests/e2e/user/", tests: coreOnly},
	{prefix: "sanity-tests/e2e/", own: true},
	{prefix: "sanity-tests/conformance/", tests: []selection{{"csi-sanity", ""}}},
	{prefix: "sanity-tests/reference/", tests: []selection{{"storage", ""}}},
	{prefix: "sanity-tests/storage/", tests: []selection{{"storage", ""}}},
	{prefix: "sanity-tests/fabric/", tests: []selection{{"fabric", ""}, {"remote", "Node|Pod"}}},
	{prefix: "sanity-tests/fabrics/", tests: []selection{{"remote", "Liqo|Kosmos"}, {"offload", "Liqo|Kosmos"}}},
	{prefix: "sanity-tests/liqo/", tests: []selection{{"liqo", ""}}},
	{prefix: "sanity-tests/components/liqo/", tests: []selection{{"liqo", ""}}},
	{prefix: "sanity-tests/external/", tests: k8sTests},
	{prefix: "sanity-tests/components/e2e/", tests: k8sTests},
	{prefix: "sanity-tests/components/", tests: lab},
	{prefix: "sanity-tests/machine/", tests: lab},
	{prefix: "sanity-tests/nodes/", tests: lab},
	{prefix: "sanity-tests/pki/", tests: lab},
	{prefix: "sanity-tests/images/", tests: lab},
	{prefix: "sanity-tests/release/", tests: []selection{{"driver", "Readme"}}},
	{prefix: "sanity-tests/clusters/", tests: lab},
	{prefix: "sanity-tests/faults/", tests: []selection{{"lab", ""}, {"faults", "FaultsBetween"}, {"remote", "Slow|Hostile"}}},
	{prefix: "sanity-tests/cmd/lab/", tests: []selection{{"lab", ""}}},
	{prefix: "sanity-tests/trees/", tests: []selection{{"driver", "GeneratedTree"}, {"remote", "GeneratedTree"}}},
	{prefix: "sanity-tests/account/", tests: []selection{{"faults", "Forgets"}}},
	{prefix: "sanity-tests/", tests: coreOnly},
}

// lineOf returns the line of the table for a path.
func lineOf(path string) (tableLine, bool) {
	at := slices.IndexFunc(table, func(line tableLine) bool { return strings.HasPrefix(path, line.prefix) })
	if at < 0 {
		return tableLine{}, false
	}
	return table[at], true
}

// testsAffectedBy returns the tests that a change of this path may break.
func testsAffectedBy(changed string, all []labTest) []labTest {
	line, _ := lineOf(changed)
	if line.own {
		own := filter(all, func(t labTest) bool { return slices.Contains(t.files, changed) })
		if len(own) == 0 {
			own = filter(all, func(t labTest) bool { return isBelow(changed, path.Dir(t.files[0])) })
		}
		return own
	}
	return filter(all, func(t labTest) bool {
		return slices.ContainsFunc(line.tests, func(s selection) bool { return s.has(t) })
	})
}

func (s selection) has(t labTest) bool {
	if compiled[s.pattern] == nil {
		compiled[s.pattern] = regexp.MustCompile(s.pattern)
	}
	return s.suite == t.suite && compiled[s.pattern].MatchString(t.name())
}

func isBelow(file, folder string) bool { return strings.HasPrefix(file, folder+"/") }

func filter[T any](tests []T, keep func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(tests), func(t T) bool { return !keep(t) })
}

// affectedTest is a test that changes of these paths may break. A path that affects few tests adds
// more weight to each of them than one that affects many.
type affectedTest struct {
	labTest
	paths  []string
	weight float64
}

// affected returns the tests that changes of these paths may break, by descending weight.
func affected(changed []string, all []labTest) []affectedTest {
	index := map[string]int{}
	var tests []affectedTest
	for _, path := range changed {
		hits := testsAffectedBy(path, all)
		for _, t := range hits {
			at, known := index[t.String()]
			if !known {
				at = len(tests)
				index[t.String()] = at
				tests = append(tests, affectedTest{labTest: t})
			}
			tests[at].paths = append(tests[at].paths, path)
			tests[at].weight += 1 / float64(len(hits))
		}
	}
	slices.SortFunc(tests, func(a, b affectedTest) int {
		return cmp.Or(cmp.Compare(b.weight, a.weight), cmp.Compare(a.String(), b.String()))
	})
	return tests
}

func (a affectedTest) reason() string {
	if len(a.paths) == 1 {
		return a.paths[0]
	}
	return fmt.Sprintf("%s and %d more", a.paths[0], len(a.paths)-1)
}

// recentCommits is how many commits' changes are tested besides the core.
const recentCommits = 30

// emptyTree is the hash of git's empty tree.
const emptyTree = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"

// changedPaths returns the paths changed in the last commits and in the work tree: all paths if the
// history is shorter, none without a git repository.
func changedPaths(root string) ([]string, error) {
	git := func(args ...string) ([]byte, error) {
		return exec.Command("git", append([]string{"-C", root}, args...)...).Output()
	}
	if _, err := git("rev-parse", "--verify", "--quiet", "HEAD"); err != nil {
		return nil, nil
	}
	since := fmt.Sprintf("HEAD~%d", recentCommits)
	if _, err := git("rev-parse", "--verify", "--quiet", since); err != nil {
		since = emptyTree
	}
	out, err := git("diff", "--name-only", "--no-renames", "-z", since)
	if err != nil {
		return nil, fmt.Errorf("changes of the last %d commits: %w", recentCommits, err)
	}
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == 0 }), nil
}
