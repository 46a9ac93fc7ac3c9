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
	// oldVariable is the environment variable with the path of its program.
	oldVariable = "LIQO_CSI_OLD_BINARY"
)

// site is one of the two clusters, with the state of the pods there.
type site struct {
	name      string
	namespace *user.Namespace
	schedule  func(*corev1.Pod)
	// find finds all objects of a claim; the returned function waits until they are deleted.
	find func(claim string) (waitDeleted func())

	counter types.UID
	count   int
	visits  string
}

// The upgrade of docs/operations.md: CRDs, then the chart, here from its package; and back by helm rollback. Pods and
// volumes of all versions keep working, and each version creates and deletes volumes.
func TestUpgradeAndRollbackWithRunningPods(t *testing.T) {
	program := os.Getenv(oldVariable)
	if program == "" {
		t.Skipf("%s has no program of commit %.7s: git worktree add DIR %[2]s, and cargo build --locked in DIR", oldVariable, oldCommit)
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
			install(user.CleanupContext(t), "", "")
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
	p.waitMarked()
	sites := []*site{
		{name: "home", namespace: p.home, schedule: user.OnNode(home.Nodes()[0].Name), find: p.findAtHome},
		{name: "remote", namespace: p.remote, schedule: p.onVirtualNode, find: func(claim string) func() {
			v := p.waitVolume(claim)
			return func() { p.waitVolumeDeleted(v) }
		}},
	}
	for _, s := range sites {
		p.home.Claim("counted-"+s.name, "liqo-reference", "64Mi")
		p.home.Claim("visited-"+s.name, "liqo-reference", "64Mi")
		p.home.Pod("counter-"+s.name, "counted-"+s.name, s.schedule, count)
		p.home.Pod("visitor-"+s.name, "visited-"+s.name, s.schedule)
		s.counter = s.namespace.WaitReady("counter-" + s.name).UID
		s.namespace.WaitReady("visitor-" + s.name)
		p.createForNextVersion(s, "old")
	}

	p.applyCRDs()
	install(t.Context(), "", archives[0])
	p.waitMarked()
	p.wantWorking(sites, "old", "new")

	if err := driver.ImportProgram(t.Context(), home, program); err != nil {
		t.Fatal(err)
	}
	if err := helm.Command(t.Context(), "rollback", chart.Release, "--namespace", chart.Namespace, "--wait", "--timeout", "5m"); err != nil {
		t.Fatal(err)
	}
	p.waitMarked()
	p.wantWorking(sites, "new", "back")

	// Install the current version for other tests. It must work with objects of the old one.
	install(t.Context(), "", "")
	p.waitMarked()
	p.wantWorking(sites, "back", "last")
	for _, s := range sites {
		p.home.DeletePod("counter-" + s.name)
		p.home.DeletePod("visitor-" + s.name)
		for _, claim := range []string{"counted-", "visited-", "last-"} {
			waitDeleted := s.find(claim + s.name)
			p.deleteClaim(claim + s.name)
			waitDeleted()
		}
	}
}

// chartAt returns the folder of the chart at this commit.
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

// applyCRDs applies the CRDs of the current version.
func (p *pair) applyCRDs() {
	p.t.Helper()
	ctx := user.CleanupContext(p.t)
	program, err := driver.Compile(ctx)
	if err != nil {
		p.t.Fatal(err)
	}
	apply := exec.CommandContext(ctx, p.home.Cluster.Kubectl(), "apply", "-f", "-")
	crds, err := exec.CommandContext(ctx, program, "crds").Output()
	if err != nil {
		p.t.Fatal(err)
	}
	apply.Stdin = bytes.NewReader(crds)
	if out, err := apply.CombinedOutput(); err != nil {
		p.t.Fatalf("apply the CRDs: %v: %s", err, out)
	}
}

// findAtHome finds all objects of a volume at home; the returned function waits until they are deleted.
func (p *pair) findAtHome(claim string) (waitDeleted func()) {
	v := p.home.WaitVolume(claim)
	return func() {
		p.t.Helper()
		volumes, twins := p.home.Client.CoreV1().PersistentVolumes(), p.home.Client.CoreV1().PersistentVolumeClaims(chart.StorageNamespace)
		p.home.Eventually("nothing of claim "+claim+" is left", func(ctx context.Context) (string, error) {
			_, virtual := volumes.Get(ctx, v.Virtual.Name, metav1.GetOptions{})
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

// createForNextVersion creates a claim that another version deletes.
func (p *pair) createForNextVersion(s *site, version string) {
	p.t.Helper()
	claim := version + "-" + s.name
	p.home.Claim(claim, "liqo-reference", "64Mi")
	p.home.Pod(claim, claim, s.schedule)
	s.namespace.WaitReady(claim)
	s.namespace.Exec(claim, "echo "+claim+" > /data/file && sync")
	p.home.DeletePod(claim)
	s.namespace.WaitDeleted("pod", claim)
}

// wantWorking checks that pods and volumes of the version before work and can be deleted, and creates volumes with this
// version.
func (p *pair) wantWorking(sites []*site, before, version string) {
	p.t.Helper()
	for _, s := range sites {
		counter, visitor := "counter-"+s.name, "visitor-"+s.name
		pod := s.namespace.WaitReady(counter)
		if restarts := pod.Status.ContainerStatuses[0].RestartCount; pod.UID != s.counter || restarts != 0 {
			user.Violated(p.t, "%s: %s is pod %s with %d restarts, and was %s", version, counter, pod.UID, restarts, s.counter)
		}
		seen := s.count
		p.home.Eventually(counter+" has counted further", func(context.Context) (string, error) {
			if s.count = p.countNumbers(s.namespace, counter); s.count <= seen {
				return "it has not", nil
			}
			return "", nil
		})

		// A mount of the version before, in a pod that is deleted, and in a new one.
		s.namespace.Exec(visitor, "echo "+version+" >> /data/file && sync")
		s.visits = strings.TrimPrefix(s.visits+"\n"+version, "\n")
		p.home.DeletePod(visitor)
		s.namespace.WaitDeleted("pod", visitor)
		p.home.Pod(visitor, "visited-"+s.name, s.schedule)
		s.namespace.WaitReady(visitor)
		if got := s.namespace.Exec(visitor, "cat /data/file"); got != s.visits {
			user.Violated(p.t, "%s: %s reads %q, and wrote %q", version, visitor, got, s.visits)
		}

		claim := before + "-" + s.name
		waitDeleted := s.find(claim)
		p.deleteClaim(claim)
		waitDeleted()
		p.createForNextVersion(s, version)
	}
}
