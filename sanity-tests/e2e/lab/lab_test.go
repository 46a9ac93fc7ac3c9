// Package lab_test starts and stops its own labs, and checks that they have the properties that
// tests rely on, and that the machine is restored afterwards. It needs root, and a machine without
// a running lab.
package lab_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/images"
	"storage.liqo.io/sanity-tests/machine"
)

// requireNoLab skips the test where a lab cannot be started.
func requireNoLab(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: a lab creates namespaces and mounts")
	}
	if _, err := clusters.Running(t.Context()); !errors.Is(err, clusters.ErrNoLab) {
		t.Skip("a lab runs on this machine, and this test starts and ends its own: run `make lab-down` first")
	}
}

func within(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

func up(t *testing.T, ctx context.Context, options clusters.Options) *clusters.Lab {
	t.Helper()
	if options.Progress == nil {
		options.Progress = t.Output()
	}
	lab, err := clusters.Up(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	return lab
}

// down does not use the test's context, because it must also clean up when that is cancelled.
func down(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if err := clusters.Down(ctx); err != nil {
		t.Fatal(err)
	}
}

// killAll kills every component of the lab.
func killAll(t *testing.T) {
	t.Helper()
	running, err := machine.Processes()
	if err != nil {
		t.Fatal(err)
	}
	for _, process := range running {
		if err := process.Kill(); err != nil {
			t.Fatal(err)
		}
	}
}

// A lab with dead components, pods, and a mounted loop device in a node is removed completely; the
// second of two starts changes nothing.
func TestDownLeavesNothingBehind(t *testing.T) {
	requireNoLab(t)
	ctx := within(t, 20*time.Minute)
	before := takeSnapshot(t)
	t.Cleanup(func() { down(t) })

	lab := up(t, ctx, clusters.Options{})
	pids := pidsOf(t, lab)
	again := up(t, ctx, clusters.Options{})
	if got := pidsOf(t, again); strings.Join(got, " ") != strings.Join(pids, " ") {
		t.Errorf("a second start restarted components: %v, before %v", got, pids)
	}

	home, err := lab.Cluster("home")
	if err != nil {
		t.Fatal(err)
	}
	runPod(t, ctx, home, "home-1", "sleep 100000")
	leaveMountedLoopDevice(t, ctx, home)
	for _, component := range []string{"etcd", "kubelet@home-1"} {
		if err := home.Kill(ctx, component); err != nil {
			t.Fatal(err)
		}
	}
	killShim(t)

	down(t)
	requireUnchanged(t, before)
	down(t) // without a lab it is no error
	requireUnchanged(t, before)
}

// A lab whose start was interrupted is removed as well.
func TestDownAfterAnInterruptedStart(t *testing.T) {
	requireNoLab(t)
	ctx := within(t, 10*time.Minute)
	before := takeSnapshot(t)
	t.Cleanup(func() { down(t) })

	broken, breakOff := context.WithCancel(ctx)
	defer breakOff()
	_, err := clusters.Up(broken, clusters.Options{Progress: whenWritten("API server answers", breakOff)})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("an interrupted start returns %v", err)
	}
	down(t)
	requireUnchanged(t, before)
}

// A lab of one small cluster, and the errors for invalid options.
func TestOneCluster(t *testing.T) {
	requireNoLab(t)
	ctx := within(t, 10*time.Minute)
	before := takeSnapshot(t)
	t.Cleanup(func() { down(t) })

	lab := up(t, ctx, clusters.Options{Clusters: []clusters.ClusterSpec{{Name: "solo", Nodes: 1}}})
	if _, err := lab.Cluster("home"); err == nil {
		t.Error("a cluster exists that was not requested")
	}
	_, err := clusters.Up(ctx, clusters.Options{})
	if err == nil || !strings.Contains(err.Error(), "another lab runs") {
		t.Errorf("a start of another lab returns %v", err)
	}
	down(t)
	requireUnchanged(t, before)
}

// A lab whose processes were all killed does not count as running, and is removed before the next
// start.
func TestRemainsOfAKilledLabAreRemoved(t *testing.T) {
	requireNoLab(t)
	ctx := within(t, 10*time.Minute)
	before := takeSnapshot(t)
	t.Cleanup(func() { down(t) })

	lab := up(t, ctx, clusters.Options{Clusters: []clusters.ClusterSpec{{Name: "solo", Nodes: 1}}})
	if _, err := clusters.Running(ctx); err != nil {
		t.Errorf("for a running lab Running returns %v", err)
	}
	if err := lab.Clusters()[0].Kill(ctx, "etcd"); err != nil {
		t.Fatal(err)
	}
	if _, err := clusters.Running(ctx); err != nil {
		t.Errorf("for a lab with one dead component Running returns %v", err)
	}
	killAll(t)
	if _, err := clusters.Running(ctx); !errors.Is(err, clusters.ErrNoLab) {
		t.Errorf("for the remains of a lab Running returns %v", err)
	}
	requireUnchanged(t, before)
}

// After a reboot only the files exist: a start recreates everything else, with the same data.
func TestUpAfterAReboot(t *testing.T) {
	requireNoLab(t)
	ctx := within(t, 10*time.Minute)
	before := takeSnapshot(t)
	t.Cleanup(func() { down(t) })
	options := clusters.Options{Clusters: []clusters.ClusterSpec{{Name: "solo", Nodes: 1}}}

	solo := up(t, ctx, options).Clusters()[0]
	kept := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}
	if _, err := client(t, solo).CoreV1().Namespaces().Create(ctx, kept, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	killAll(t)
	if err := machine.UnmountBelow(machine.StateDir); err != nil {
		t.Fatal(err)
	}

	solo = up(t, ctx, options).Clusters()[0]
	if _, err := client(t, solo).CoreV1().Namespaces().Get(ctx, kept.Name, metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	runPod(t, ctx, solo, "solo-1", "sleep 100000")
	down(t)
	requireUnchanged(t, before)
}

func pidsOf(t *testing.T, lab *clusters.Lab) []string {
	t.Helper()
	var pids []string
	for _, cluster := range lab.Clusters() {
		for _, component := range cluster.Components() {
			process, err := cluster.Process(component)
			if err != nil || !process.Alive() {
				t.Fatalf("%s/%s does not run: %v", cluster.Name(), component, err)
			}
			pids = append(pids, strconv.Itoa(process.PID))
		}
	}
	return pids
}

// runPod starts a pod of busybox on a node and waits until it runs.
func runPod(t *testing.T, ctx context.Context, cluster *clusters.Cluster, node, script string, edits ...func(*corev1.Pod)) *corev1.Pod {
	t.Helper()
	client, err := cluster.Client()
	if err != nil {
		t.Fatal(err)
	}
	soon := int64(1)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "lab-"},
		Spec: corev1.PodSpec{
			NodeName:                      node,
			DNSPolicy:                     corev1.DNSDefault,
			RestartPolicy:                 corev1.RestartPolicyNever,
			TerminationGracePeriodSeconds: &soon,
			Containers: []corev1.Container{{
				Name: "main", Image: images.BusyboxName, ImagePullPolicy: corev1.PullIfNotPresent,
				Command: []string{"sh", "-c", script},
			}},
		},
	}
	for _, edit := range edits {
		edit(pod)
	}
	if pod, err = client.CoreV1().Pods(metav1.NamespaceDefault).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	err = machine.Until(ctx, "pod "+pod.Name+" to run", func() error {
		seen, err := client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if pod = seen; pod.Status.Phase == corev1.PodPending {
			return errors.New("it is pending")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// leaveMountedLoopDevice leaves a mounted loop device in a node, like a driver that was killed.
func leaveMountedLoopDevice(t *testing.T, ctx context.Context, cluster *clusters.Cluster) {
	t.Helper()
	node := cluster.Nodes()[0]
	script := `set -e
mkdir -p /mnt/disk /var/lib/kubelet/left
truncate -s 64M /mnt/disk/image
device=$(losetup --find --show /mnt/disk/image)
mkfs.ext4 -q $device
mount $device /var/lib/kubelet/left
sleep 100000 >/dev/null 2>&1 &`
	if out, err := node.Command(ctx, "sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("mount a loop device in %s: %v: %s", node.Name, err, out)
	}
	table, err := machine.Mounts()
	if err != nil {
		t.Fatal(err)
	}
	if !table.Has(filepath.Join(node.KubeletRoot(), "left")) {
		t.Error("a mount below kubelet's folder is not visible on the host")
	}
}

// killShim kills the shim of a container, which then has no parent.
func killShim(t *testing.T) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		command, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		cgroup, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "cgroup"))
		if bytes.Contains(command, []byte("containerd-shim-runc-v2")) && bytes.Contains(cgroup, []byte(machine.CgroupName)) {
			pid, _ := strconv.Atoi(entry.Name())
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatal("no container shim runs")
}

// whenWritten is a writer that calls do when this text is written to it.
func whenWritten(text string, do func()) writerFunc {
	return func(written []byte) (int, error) {
		if bytes.Contains(written, []byte(text)) {
			do()
		}
		return len(written), nil
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(text []byte) (int, error) { return f(text) }
