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

// someOf are the tests of a suite whose names match a pattern, all of them if it is empty.
type someOf struct{ suite, pattern string }

// tableLine says which lab tests a change below a path may break, beside the core.
type tableLine struct {
	prefix string
	tests  []someOf
	// own: the tests in the changed file itself, or if it has none all of its suite.
	own bool
}

const (
	movesAtHome = "Move"
	movesFaults = "move"
	expansion   = "Grow|Expan|Size|Quota"
	copies      = "Snapshot|Clone|Copi|Copy|Restore|VolumeMode|Populat|PrimeClaim"
	rights      = "Rights|Role|Fence|Liqo"
)

var (
	moves = []someOf{{"move", ""}, {"driver", movesAtHome}, {"remote", movesAtHome}, {"faults", movesFaults}, {"liqo", movesAtHome}}

	imports  = []someOf{{"driver", "Import|Adopt"}, {"faults", "import"}}
	releases = []someOf{{"driver", "Release"}, {"remote", "Release"}, {"faults", "release"}}
	snapshot = []someOf{{"driver", copies}, {"remote", copies}, {"faults", "snapshot|restore"}}
	growth   = []someOf{{"driver", expansion}, {"remote", expansion}, {"faults", "grows"}}
	modified = []someOf{{"driver", "Attributes"}, {"remote", "Attributes"}, {"faults", "attributes"}}
	capacity = []someOf{{"driver", "Room|Placement|Node|Cordon"}, {"remote", "Left|Full|Quota|Refus"}, {"faults", "room|refuses"}}
	deletion = []someOf{{"driver", "Delet|Retain|Claim|Rescued"}, {"remote", "Delet|Retain|Claim|Held"}, {"faults", "retain|deleted|abandoned|goes"}}

	offloading = []someOf{{"offload", ""}, {"faults", "FabricDying"}}
	reflection = []someOf{{"offload", "Copied|Service|Quick|Manifests"}}
	podsThere  = []someOf{{"offload", "Pod|Job|AtMostOnce|RunThere|Database"}, {"faults", "FabricDying.*pods"}, {"node conformance", ""}}
	homeLives  = []someOf{{"driver", ""}, {"faults", "TestDying.*a_|Trouble"}}
	everywhere = []someOf{{"driver", ""}, {"remote", ""}, {"faults", ""}}
	otherSide  = []someOf{{"remote", ""}, {"faults", "another_cluster|Trouble"}}
	connects   = []someOf{{"remote", "Connect|Session"}, {"pages", "TwoClusters"}}
	k8sTests   = []someOf{{"external storage", ""}, {"node conformance", ""}}
	theLab     = []someOf{{"lab", ""}, {"storage", ""}, {"fabric", ""}}
)

// coreOnly is for what the core tests well enough, or unit tests alone.
var coreOnly []someOf

// table: the first line whose prefix a changed path has counts. A path without one is no
// source, and changes nothing that the lab could show.
var table = []tableLine{
	{prefix: "crates/fabric/src/streams/", tests: []someOf{{"offload", "UsersReach|OwnPods"}}},
	{prefix: "crates/fabric/src/reflect/", tests: reflection},
	{prefix: "crates/fabric/src/node/", tests: []someOf{{"offload", "Node|AtMostOnce|DaemonSet|Unoffload"}, {"faults", "FabricDying.*node_of"}}},
	{prefix: "crates/fabric/src/pods/", tests: podsThere},
	{prefix: "crates/fabric/src/rights", tests: []someOf{{"offload", "Fence|Rights"}}},
	{prefix: "crates/fabric/src/", tests: offloading},
	{prefix: "crates/model/src/offload/reflection/", tests: reflection},
	{prefix: "crates/model/src/offload/network", tests: []someOf{{"offload", "Service|Database"}}},
	{prefix: "crates/model/src/offload/pods/", tests: podsThere},
	{prefix: "crates/model/src/offload/", tests: offloading},
	{prefix: "crates/cluster/src/api/fabric", tests: offloading},
	{prefix: "crates/cluster/src/api/namespace_offloading", tests: offloading},
	{prefix: "src/cli/fabric", tests: offloading},
	{prefix: "src/cli/offload", tests: []someOf{{"offload", "Offload|Strategy|Refused|Printed"}}},
	{prefix: "src/cli/unoffload", tests: []someOf{{"offload", "Unoffload|Volumes|Owner"}, {"liqo", "Unoffload|Offloaded"}}},

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
	{prefix: "src/csi/snapshots", tests: append([]someOf{{"csi-sanity", ""}}, snapshot...)},
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
	{prefix: "crates/twin/src/remote_", tests: otherSide},

	{prefix: "crates/node/src/forgotten", tests: []someOf{{"faults", "Forgets|OutOfService|Kills"}}},
	{prefix: "crates/node/src/", tests: []someOf{{"driver", ""}, {"faults", "attached|static|Forgets|OutOfService|Kills"}, {"csi-sanity", ""}, {"external storage", ""}}},
	{prefix: "src/csi/node", tests: []someOf{{"driver", ""}, {"csi-sanity", ""}, {"external storage", ""}}},
	{prefix: "src/csi/", tests: []someOf{{"driver", ""}, {"csi-sanity", ""}, {"external storage", ""}}},
	{prefix: "crates/wire/", tests: []someOf{{"csi-sanity", ""}}},
	{prefix: "proto/", tests: []someOf{{"csi-sanity", ""}}},

	{prefix: "crates/cluster/src/fleet/liqo", tests: []someOf{{"remote", "Liqo"}, {"liqo", ""}}},
	{prefix: "crates/cluster/src/fleet/kosmos", tests: []someOf{{"remote", "Kosmos"}, {"offload", "Kosmos"}}},
	{prefix: "crates/cluster/src/fleet/kubeconfig", tests: []someOf{{"remote", "Kubeconfig|Hostile|Identity|Rights|Role"}}},
	{prefix: "crates/cluster/src/fleet/", tests: otherSide},
	{prefix: "crates/cluster/src/cluster/rights", tests: []someOf{{"remote", rights}, {"offload", rights}}},
	{prefix: "crates/cluster/src/cluster/evict", tests: []someOf{{"offload", "Unoffload|Evict|Owner"}, {"driver", movesAtHome}, {"faults", movesFaults}}},
	{prefix: "crates/cluster/src/cluster/", tests: otherSide},
	{prefix: "crates/twin/src/claim_copy", tests: []someOf{{"remote", "Kosmos"}}},
	{prefix: "crates/twin/src/mirrored", tests: []someOf{{"remote", "Kosmos"}}},
	{prefix: "sanity-tests/fabric/kosmosclaims", tests: []someOf{{"remote", "Kosmos"}}},
	{prefix: "crates/controllers/src/clusters", tests: otherSide},
	{prefix: "crates/controllers/src/virtual_nodes", tests: otherSide},
	{prefix: "crates/controllers/src/by_cluster", tests: otherSide},
	{prefix: "crates/controllers/src/mirror", tests: otherSide},
	{prefix: "crates/controllers/src/attachments", tests: []someOf{{"driver", ""}, {"faults", "attached|OutOfService|Kills"}}},
	{prefix: "crates/controllers/src/health", tests: []someOf{{"driver", "Doctor|VolumesShows"}, {"remote", "Shown"}}},
	{prefix: "crates/controllers/src/serving", tests: []someOf{{"offload", "UsersReach|OwnPods"}}},
	{prefix: "crates/controllers/src/metrics", tests: coreOnly},
	{prefix: "src/inspect/", tests: []someOf{{"driver", "Doctor|VolumesShows|SpeaksAgainst"}, {"remote", "Shown|Said"}}},
	{prefix: "src/cli/doctor", tests: []someOf{{"driver", "Doctor|HelmTest"}}},
	{prefix: "src/cli/volumes", tests: []someOf{{"driver", "VolumesShows"}}},
	{prefix: "src/cli/clusters", tests: []someOf{{"remote", "Shown"}}},
	{prefix: "crates/observe/src/crash", tests: []someOf{{"faults", "Dying"}}},
	{prefix: "crates/model/src/placement/", tests: everywhere},
	{prefix: "crates/twin/src/", tests: everywhere},
	{prefix: "crates/model/src/volume/", tests: everywhere},
	{prefix: "crates/controllers/src/", tests: everywhere},
	{prefix: "crates/cluster/src/lease", tests: everywhere},
	{prefix: "crates/cluster/src/queue", tests: everywhere},
	{prefix: "crates/cluster/src/api/remote_cluster", tests: []someOf{{"remote", "Declared|Meant"}}},
	{prefix: "src/", tests: coreOnly},
	{prefix: "crates/", tests: coreOnly},
	{prefix: "build.rs", tests: coreOnly},

	{prefix: "deploy/chart/", tests: slices.Concat([]someOf{{"driver", "Reinstall|Doctor|HelmTest|OneValue"}, {"remote", rights}, {"offload", rights}}, connects)},

	{prefix: "README.md", tests: []someOf{{"pages", "Readme"}}},
	{prefix: "docs/remote/two-clusters.md", tests: []someOf{{"pages", "TwoClusters"}}},
	{prefix: "sanity-tests/pages/", tests: []someOf{{"pages", ""}}},

	{prefix: "sanity-tests/e2e/user/", tests: coreOnly},
	{prefix: "sanity-tests/e2e/", own: true},
	{prefix: "sanity-tests/conformance/", tests: []someOf{{"csi-sanity", ""}}},
	{prefix: "sanity-tests/reference/", tests: []someOf{{"storage", ""}}},
	{prefix: "sanity-tests/storage/", tests: []someOf{{"storage", ""}}},
	{prefix: "sanity-tests/fabric/", tests: []someOf{{"fabric", ""}, {"remote", "Node|Pod"}}},
	{prefix: "sanity-tests/fabrics/", tests: []someOf{{"remote", "Liqo|Kosmos"}, {"offload", "Liqo|Kosmos"}}},
	{prefix: "sanity-tests/liqo/", tests: []someOf{{"liqo", ""}}},
	{prefix: "sanity-tests/components/liqo/", tests: []someOf{{"liqo", ""}}},
	{prefix: "sanity-tests/external/", tests: k8sTests},
	{prefix: "sanity-tests/components/e2e/", tests: k8sTests},
	{prefix: "sanity-tests/components/", tests: theLab},
	{prefix: "sanity-tests/machine/", tests: theLab},
	{prefix: "sanity-tests/nodes/", tests: theLab},
	{prefix: "sanity-tests/pki/", tests: theLab},
	{prefix: "sanity-tests/images/", tests: theLab},
	{prefix: "sanity-tests/release/", tests: []someOf{{"driver", "Readme"}}},
	{prefix: "sanity-tests/clusters/", tests: theLab},
	{prefix: "sanity-tests/faults/", tests: []someOf{{"lab", ""}, {"faults", "Trouble"}, {"remote", "Slow|Hostile"}}},
	{prefix: "sanity-tests/cmd/lab/", tests: []someOf{{"lab", ""}}},
	{prefix: "sanity-tests/account/", tests: []someOf{{"faults", "Forgets"}}},
	{prefix: "sanity-tests/", tests: coreOnly},
}

// lineOf is the line of the table for a path, if there is one.
func lineOf(path string) (tableLine, bool) {
	at := slices.IndexFunc(table, func(line tableLine) bool { return strings.HasPrefix(path, line.prefix) })
	if at < 0 {
		return tableLine{}, false
	}
	return table[at], true
}

// broken are the tests that a change of this path may break.
func broken(changed string, all []labTest) []labTest {
	line, _ := lineOf(changed)
	if line.own {
		own := filter(all, func(t labTest) bool { return slices.Contains(t.files, changed) })
		if len(own) == 0 {
			own = filter(all, func(t labTest) bool { return isBelow(changed, path.Dir(t.files[0])) })
		}
		return own
	}
	return filter(all, func(t labTest) bool {
		return slices.ContainsFunc(line.tests, func(some someOf) bool { return some.has(t) })
	})
}

func (s someOf) has(t labTest) bool {
	return s.suite == t.suite && regexp.MustCompile(s.pattern).MatchString(t.name())
}

func isBelow(file, folder string) bool { return strings.HasPrefix(file, folder+"/") }

func filter(tests []labTest, is func(labTest) bool) []labTest {
	return slices.DeleteFunc(slices.Clone(tests), func(t labTest) bool { return !is(t) })
}

// affectedTest is a test that changes may break, the paths that say so, and how much they
// say it: a path with few tests means each of them more than one with many.
type affectedTest struct {
	labTest
	paths  []string
	weight float64
}

// affected are the tests that changes of these paths may break, those first that are meant most.
func affected(changed []string, all []labTest) []affectedTest {
	index := map[string]int{}
	var tests []affectedTest
	for _, path := range changed {
		of := broken(path, all)
		for _, t := range of {
			at, known := index[t.String()]
			if !known {
				at = len(tests)
				index[t.String()] = at
				tests = append(tests, affectedTest{labTest: t})
			}
			tests[at].paths = append(tests[at].paths, path)
			tests[at].weight += 1 / float64(len(of))
		}
	}
	slices.SortFunc(tests, func(a, b affectedTest) int {
		return cmp.Or(cmp.Compare(b.weight, a.weight), cmp.Compare(a.String(), b.String()))
	})
	return tests
}

// why names the paths.
func (a affectedTest) why() string {
	if len(a.paths) == 1 {
		return a.paths[0]
	}
	return fmt.Sprintf("%s and %d more", a.paths[0], len(a.paths)-1)
}

// recentCommits are those whose changes are tested beside the core.
const recentCommits = 30

// emptyTree is git's name of it: what an archive of no files would be.
const emptyTree = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"

// changedPaths are those that the last commits and the work tree have changed: all of them
// where the history is shorter, and none in an archive without one.
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
		return nil, fmt.Errorf("what the last %d commits have changed: %w", recentCommits, err)
	}
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == 0 }), nil
}
