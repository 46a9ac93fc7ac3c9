package remote

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
)

const (
	// oldCommit is the version from which the driver is upgraded.
	oldCommit = "e2d45f6e1e7dfc1f4f802fc00e254622b4e044e5"
	// oldVariable names, in the environment, its program.
	oldVariable = "LIQO_CSI_OLD_BINARY"
)

// site is one of the two clusters: how pods of the home cluster get there, and what follows a volume.
type site struct {
	name string
	// namespace pods run.
	namespace *user.Namespace
	schedule  func(*corev1.Pod)
	// find is what a claim has there; the function that it returns waits until that is gone.
	find func(claim string) (gone func())

	counter types.UID
	count   int
	visits  string
}

// As docs/operations.md says: the definitions, then the chart, here from its package; and back with helm rollback.
// Pods and their volumes go on, whatever version made them, and new ones are made and deleted.
func TestUpgradeAndBackUnderRunningPods(t *testing.T) {
	program := os.Getenv(oldVariable)
	if program == "" {
		t.Skipf("%s names no program of commit %.7s: git worktree add DIR %[2]s, and cargo build --locked in DIR", oldVariable, oldCommit)
	}
	p := newSerialPair(t)
	home := p.home.Cluster
	helm, err := chart.New(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	helm.Kubeconfig = home.Kubeconfig()
	packages := t.TempDir()
	if err := helm.Package(t.Context(), packages); err != nil {
		t.Fatal(err)
	}
	archives, err := filepath.Glob(filepath.Join(packages, "*.tgz"))
	if err != nil || len(archives) != 1 {
		t.Fatalf("packages %v: %v", archives, err)
	}
	install := func(ctx context.Context, program, chart string) {
		t.Helper()
		options := driver.Options{Progress: os.Stderr, Values: sharedValues(), Program: program, Chart: chart}
		if err := driver.Install(ctx, home, options); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			p.applyCRDs()
			install(user.Afterwards(t), "", "")
		}
	})

	old := chartAt(t, oldCommit)
	if err := driver.Uninstall(t.Context(), home); err != nil {
		t.Fatal(err)
	}
	if out, err := p.home.Kubectl("replace", "-f", filepath.Join(old, "crds")); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	install(t.Context(), program, old)
	p.wantMarked()
	places := []*site{
		{name: "here", namespace: p.home, schedule: user.OnNode(home.Nodes()[0].Name), find: p.findAtHome},
		{name: "there", namespace: p.remote, schedule: p.onVirtualNode, find: func(claim string) func() {
			v := p.waitVolume(claim)
			return func() { p.wantGone(v) }
		}},
	}
	for _, at := range places {
		p.home.Claim("counted-"+at.name, "liqo-reference", "64Mi")
		p.home.Claim("visited-"+at.name, "liqo-reference", "64Mi")
		p.home.Pod("counter-"+at.name, "counted-"+at.name, at.schedule, func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Command = []string{"sh", "-c", countScript}
		})
		p.home.Pod("visitor-"+at.name, "visited-"+at.name, at.schedule)
		at.counter = at.namespace.WaitReady("counter-" + at.name).UID
		at.namespace.WaitReady("visitor-" + at.name)
		p.createForNextVersion(at, "old")
	}

	p.applyCRDs()
	install(t.Context(), "", archives[0])
	p.wantMarked()
	p.wantWorking(places, "old", "new")

	if err := driver.ImportProgram(t.Context(), home, program); err != nil {
		t.Fatal(err)
	}
	if err := helm.Command(t.Context(), "rollback", chart.Release, "--namespace", chart.Namespace, "--wait", "--timeout", "5m"); err != nil {
		t.Fatal(err)
	}
	p.wantMarked()
	p.wantWorking(places, "new", "back")

	// Whatever comes next finds the current version, which has to do with what the old one left.
	install(t.Context(), "", "")
	p.wantMarked()
	p.wantWorking(places, "back", "last")
	for _, at := range places {
		p.home.DeletePod("counter-" + at.name)
		p.home.DeletePod("visitor-" + at.name)
		for _, claim := range []string{"counted-", "visited-", "last-"} {
			gone := at.find(claim + at.name)
			p.deleteClaim(claim + at.name)
			gone()
		}
	}
}

// chartAt is the chart as it was at this commit.
func chartAt(t *testing.T, commit string) (folder string) {
	t.Helper()
	folder = t.TempDir()
	const inside = "deploy/chart/liqo-csi"
	archive, err := exec.CommandContext(t.Context(), "git", "-C", "../../..", "archive", commit, inside).Output()
	if err != nil {
		t.Fatalf("the chart of commit %.7s: %v", commit, err)
	}
	unpack := exec.CommandContext(t.Context(), "tar", "-x", "-C", folder)
	unpack.Stdin = bytes.NewReader(archive)
	if out, err := unpack.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return filepath.Join(folder, inside)
}

// applyCRDs applies the definitions of the current version.
func (p *pair) applyCRDs() {
	p.t.Helper()
	ctx := user.Afterwards(p.t)
	program, err := driver.Compile(ctx)
	if err != nil {
		p.t.Fatal(err)
	}
	apply := exec.CommandContext(ctx, p.home.Cluster.Kubectl(), "apply", "-f", "-")
	definitions, err := exec.CommandContext(ctx, program, "crds").Output()
	if err != nil {
		p.t.Fatal(err)
	}
	apply.Stdin = bytes.NewReader(definitions)
	if out, err := apply.CombinedOutput(); err != nil {
		p.t.Fatalf("apply the definitions: %v: %s", err, out)
	}
}

// wantMarked waits until pods with claims can be sent there.
func (p *pair) wantMarked() {
	p.t.Helper()
	if err := waitMarked(p.t.Context(), p.home.Cluster, p.node, p.cluster); err != nil {
		p.t.Fatal(err)
	}
}

// findAtHome follows a volume at home.
func (p *pair) findAtHome(claim string) (gone func()) {
	v := p.home.Follow(claim)
	return func() {
		p.t.Helper()
		volumes, twins := p.home.Client.CoreV1().PersistentVolumes(), p.home.Client.CoreV1().PersistentVolumeClaims(chart.StorageNamespace)
		p.home.Eventually("nothing of claim "+claim+" is left", func(ctx context.Context) (string, error) {
			_, virtual := volumes.Get(ctx, v.Object.Name, metav1.GetOptions{})
			_, real := volumes.Get(ctx, v.Real.Name, metav1.GetOptions{})
			_, twin := twins.Get(ctx, v.Twin.Name, metav1.GetOptions{})
			var left []string
			for what, err := range map[string]error{"its volume": virtual, "its twin": twin, "its twin's volume": real} {
				if err == nil {
					left = append(left, what)
				} else if !apierrors.IsNotFound(err) {
					return "", err
				}
			}
			return strings.Join(left, ", "), nil
		})
	}
}

// createForNextVersion makes a claim that another version is going to delete.
func (p *pair) createForNextVersion(at *site, version string) {
	p.t.Helper()
	claim := version + "-" + at.name
	p.home.Claim(claim, "liqo-reference", "64Mi")
	p.home.Pod(claim, claim, at.schedule)
	at.namespace.WaitReady(claim)
	at.namespace.Exec(claim, "echo "+claim+" > /data/file && sync")
	p.home.DeletePod(claim)
	at.namespace.WaitGone("pod", claim)
}

// wantWorking: what was there before goes on and can be used and deleted, and this version makes the same.
func (p *pair) wantWorking(places []*site, before, version string) {
	p.t.Helper()
	for _, at := range places {
		counter, visitor := "counter-"+at.name, "visitor-"+at.name
		pod := at.namespace.WaitReady(counter)
		if restarts := pod.Status.ContainerStatuses[0].RestartCount; pod.UID != at.counter || restarts != 0 {
			user.Violated(p.t, "%s: %s is pod %s with %d restarts, and was %s", version, counter, pod.UID, restarts, at.counter)
		}
		seen := at.count
		p.home.Eventually(counter+" counts on", func(context.Context) (string, error) {
			if at.count = p.countNumbers(at.namespace, counter); at.count <= seen {
				return "it does not", nil
			}
			return "", nil
		})

		// A mount that the version before made, in a pod that ends, and in another one.
		at.namespace.Exec(visitor, "echo "+version+" >> /data/file && sync")
		at.visits = strings.TrimPrefix(at.visits+"\n"+version, "\n")
		p.home.DeletePod(visitor)
		at.namespace.WaitGone("pod", visitor)
		p.home.Pod(visitor, "visited-"+at.name, at.schedule)
		at.namespace.WaitReady(visitor)
		if got := at.namespace.Exec(visitor, "cat /data/file"); got != at.visits {
			user.Violated(p.t, "%s: %s reads %q, and wrote %q", version, visitor, got, at.visits)
		}

		doomed := before + "-" + at.name
		gone := at.find(doomed)
		p.deleteClaim(doomed)
		gone()
		p.createForNextVersion(at, version)
	}
}
