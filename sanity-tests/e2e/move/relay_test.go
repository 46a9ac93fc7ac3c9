package move

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"storage.liqo.io/sanity-tests/e2e/user"
)

const (
	dataLanes = 2
	// megabytes is the number of files of 1 MiB with random data.
	megabytes = 48
	// bandwidth is per second, so that the copy takes some seconds.
	bandwidth = "8Mi"
	// megabytesInFlight is the most in one lane: MAX_BATCH of mover/src/piece.rs.
	megabytesInFlight = 3
)

// relay is a process that connects source and target with the rights of both clusters' administrators.
type relay struct {
	t       *testing.T
	flags   []string
	command *exec.Cmd
	log     *bytes.Buffer
}

func (r *relay) start() {
	r.t.Helper()
	r.log = &bytes.Buffer{}
	r.command = exec.Command(built.program, append([]string{
		"relay", "--data-lanes", strconv.Itoa(dataLanes), "--bandwidth", bandwidth}, r.flags...)...)
	r.command.Stdout, r.command.Stderr = r.log, r.log
	if err := r.command.Start(); err != nil {
		r.t.Fatal(err)
	}
}

// kill kills the relay, and returns its peak memory in kilobytes. Pages of the program do not count, because the kernel
// can drop them. A debug build has many more of them than the release.
func (r *relay) kill() (memory int) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.command.Process.Pid))
	if err != nil {
		r.t.Fatalf("the relay has exited: %v\n%s", err, r.log)
	}
	peak := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status)
	if peak == nil {
		r.t.Fatalf("the relay has exited:\n%s", r.log)
	}
	mapped := regexp.MustCompile(`RssFile:\s+(\d+) kB`).FindSubmatch(status)
	if mapped == nil {
		r.t.Fatalf("the relay has no mapped pages:\n%s", status)
	}
	total, _ := strconv.Atoi(string(peak[1]))
	program, _ := strconv.Atoi(string(mapped[1]))
	_ = r.command.Process.Kill()
	_ = r.command.Wait()
	return total - program
}

// sendOrder sends an order to the target from its pod, and returns the last response.
func sendOrder(n *user.Namespace, order string) (map[string]map[string]any, error) {
	script := fmt.Sprintf("echo '%s' | nc %s", order, strings.ReplaceAll(controlAddress, ":", " "))
	out, err := n.Kubectl("exec", "target", "-c", helper, "--", "sh", "-c", script)
	if err != nil {
		return nil, err
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	response := map[string]map[string]any{}
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &response); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	return response, nil
}

// received returns the bytes that the loopback of the target has received, where forwarded ports end.
func received(n *user.Namespace) int {
	text := n.Exec("target", `awk '$1 == "lo:" { print $2 }' /proc/net/dev`)
	bytes, _ := strconv.Atoi(text)
	return bytes
}

// A directory is copied from a pod to one of another cluster through the API servers and a relay, which is killed
// halfway. Little is sent twice, and the target has the files of the source.
func TestTreeMovesThroughTheRelay(t *testing.T) {
	prepare(t)
	home := user.NewNamespace(t, user.Cluster(t, "home"))
	remote := user.NewNamespaceNamed(t, user.Cluster(t, "remote"), home.Name)
	credentials := t.TempDir()
	if out, err := exec.Command(built.program, "mover", "issue", "--move", moveID, credentials).CombinedOutput(); err != nil {
		t.Fatalf("issue certificates: %v\n%s", err, out)
	}
	startMover(home, t, "source", home.Cluster.Nodes()[0].Name, credentials, "--lanes", strconv.Itoa(dataLanes))
	startMover(remote, t, "target", remote.Cluster.Nodes()[0].Name, credentials, "--control", controlAddress)
	home.WaitReady("source")
	remote.WaitReady("target")
	const sums = `cd /data && find . -type f ! -path './.liqo-move-*' -exec md5sum {} + | sort -k 2`
	home.Exec("source", fmt.Sprintf(`cd /data && for i in $(seq %d); do
		dd if=/dev/urandom of=file-$i bs=1M count=1 2>/dev/null; done; mkdir d; echo small > d/small; ln d/small d/link`, megabytes))

	connection := &relay{t: t, flags: []string{
		"--source", fmt.Sprintf("%s/source:%d", home.Name, lanesPort), "--source-kubeconfig", home.Cluster.Kubeconfig(),
		"--target", fmt.Sprintf("%s/target:%d", remote.Name, lanesPort), "--target-kubeconfig", remote.Cluster.Kubeconfig(),
	}}
	connection.start()
	defer func() { _ = connection.command.Process.Kill() }()

	type outcome struct {
		response map[string]map[string]any
		err      error
	}
	passed := make(chan outcome, 1)
	before, began := received(remote), time.Now()
	go func() {
		response, err := sendOrder(remote, `{"pass":{"last":true}}`)
		passed <- outcome{response, err}
	}()
	for received(remote)-before < megabytes<<20/2 {
		if time.Since(began) > user.Timeout {
			t.Fatalf("the target received %d bytes within %s\n%s", received(remote)-before, user.Timeout, connection.log)
		}
		select {
		case early := <-passed:
			t.Fatalf("the pass ended before the relay was killed: %v", early)
		case <-time.After(100 * time.Millisecond):
		}
	}
	if memory := connection.kill(); memory > 64<<10 {
		t.Errorf("the relay took %d KiB", memory)
	}
	connection.start()
	var last outcome
	select {
	case last = <-passed:
	case <-time.After(user.Timeout):
		t.Fatalf("the pass has not ended within %s\n%s", user.Timeout, connection.log)
	}
	if last.err != nil || last.response["passed"] == nil {
		t.Fatalf("the pass: %v, %v\n%s", last.response, last.err, connection.log)
	}
	took := time.Since(began)
	sent := float64(received(remote)-before) / (megabytes << 20)
	t.Logf("%d MiB in %s, %.3f times their bytes were received", megabytes, took.Round(time.Second), sent)
	// What was in flight in each lane when the relay was killed is sent again.
	if sent > 1.05+dataLanes*megabytesInFlight/float64(megabytes) {
		t.Errorf("the target received %.3f times the content", sent)
	}
	if least := time.Duration(megabytes/8-1) * time.Second; took < least {
		t.Errorf("the copy took %s; with %s per second it takes at least %s", took, bandwidth, least)
	}

	verified, err := sendOrder(remote, `{"verify":{"all":true}}`)
	if err != nil || verified["verified"]["different"] != 0.0 {
		t.Fatalf("the verification: %v, %v", verified, err)
	}
	if _, err := remote.Kubectl("exec", "target", "-c", helper, "--", "sh", "-c",
		fmt.Sprintf(`echo '"finish"' | nc %s`, strings.ReplaceAll(controlAddress, ":", " "))); err != nil {
		t.Fatal(err)
	}
	if want, got := home.Exec("source", sums), remote.Exec("target", sums); want != got || len(want) < 1000 {
		user.Violated(t, "the source has\n%s\nthe target has\n%s", want, got)
	}
	if links := remote.Exec("target", "stat -c %h /data/d/small"); links != "2" {
		t.Errorf("the number of links is %s, want 2", links)
	}
}
