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
	// dataLanes are enough to have some of everything.
	dataLanes = 2
	// megabytes that do not compress, in files of one each.
	megabytes = 48
	// bandwidth makes that last for some seconds.
	bandwidth = "8Mi"
	// megabytesUnderWay are in one lane at most: MAX_BATCH of mover/src/piece.rs.
	megabytesUnderWay = 3
)

// relay is the program that connects the ends, run here with the rights of both
// clusters' administrators.
type relay struct {
	t    *testing.T
	ends []string
	run  *exec.Cmd
	log  *bytes.Buffer
}

func (r *relay) start() {
	r.t.Helper()
	r.log = &bytes.Buffer{}
	r.run = exec.Command(built.program, append([]string{
		"relay", "--data-lanes", strconv.Itoa(dataLanes), "--bandwidth", bandwidth}, r.ends...)...)
	r.run.Stdout, r.run.Stderr = r.log, r.log
	if err := r.run.Start(); err != nil {
		r.t.Fatal(err)
	}
}

// kill ends it as kill -9 does: all connections break. What it had of memory of its own, in
// kilobytes, is told: pages of its program, of which a debug build has many more than the
// release, the kernel can read again.
func (r *relay) kill() (memory int) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.run.Process.Pid))
	if err != nil {
		r.t.Fatalf("the relay is gone: %v\n%s", err, r.log)
	}
	most := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status)
	if most == nil {
		r.t.Fatalf("the relay has ended:\n%s", r.log)
	}
	mapped := regexp.MustCompile(`RssFile:\s+(\d+) kB`).FindSubmatch(status)
	if mapped == nil {
		r.t.Fatalf("the relay has no mapped pages:\n%s", status)
	}
	peak, _ := strconv.Atoi(string(most[1]))
	program, _ := strconv.Atoi(string(mapped[1]))
	memory = peak - program
	_ = r.run.Process.Kill()
	_ = r.run.Wait()
	return memory
}

// order is given to the target from beside it, as by somebody who forwards its port. What
// is answered last counts.
func order(n *user.Namespace, order string) (map[string]map[string]any, error) {
	script := fmt.Sprintf("echo '%s' | nc %s", order, strings.ReplaceAll(ordersAddress, ":", " "))
	out, err := n.Kubectl("exec", "target", "-c", helper, "--", "sh", "-c", script)
	if err != nil {
		return nil, err
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	answer := map[string]map[string]any{}
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &answer); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	return answer, nil
}

// received is what has come to the pod's loopback: forwarded ports end there.
func received(n *user.Namespace) int {
	text := n.Exec("target", `awk '$1 == "lo:" { print $2 }' /proc/net/dev`)
	bytes, _ := strconv.Atoi(text)
	return bytes
}

// A tree goes from a pod of one cluster to a pod of the other, with nothing between them but
// the API servers and a relay that is killed halfway. Little is sent twice, and what the
// target's disk returns is what the source has.
func TestATreeMovesThroughTheRelay(t *testing.T) {
	prepare(t)
	home := user.NewNamespace(t, user.Cluster(t, "home"))
	remote := user.NewNamespaceNamed(t, user.Cluster(t, "remote"), home.Name)
	credentials := t.TempDir()
	if out, err := exec.Command(built.program, "mover", "issue", "--move", moveID, credentials).CombinedOutput(); err != nil {
		t.Fatalf("issue certificates: %v\n%s", err, out)
	}
	end(home, t, "source", home.Cluster.Nodes()[0].Name, credentials, "--lanes", strconv.Itoa(dataLanes))
	end(remote, t, "target", remote.Cluster.Nodes()[0].Name, credentials, "--control", ordersAddress)
	home.WaitReady("source")
	remote.WaitReady("target")
	const sums = `cd /data && find . -type f ! -path './.liqo-move-*' -exec md5sum {} + | sort -k 2`
	home.Exec("source", fmt.Sprintf(`cd /data && for i in $(seq %d); do
		dd if=/dev/urandom of=file-$i bs=1M count=1 2>/dev/null; done; mkdir d; echo small > d/small; ln d/small d/again`, megabytes))

	connection := &relay{t: t, ends: []string{
		"--source", fmt.Sprintf("%s/source:%d", home.Name, lanesPort), "--source-kubeconfig", home.Cluster.Kubeconfig(),
		"--target", fmt.Sprintf("%s/target:%d", remote.Name, lanesPort), "--target-kubeconfig", remote.Cluster.Kubeconfig(),
	}}
	connection.start()
	defer func() { _ = connection.run.Process.Kill() }()

	type outcome struct {
		answer map[string]map[string]any
		err    error
	}
	passed := make(chan outcome, 1)
	before, began := received(remote), time.Now()
	go func() {
		answer, err := order(remote, `{"pass":{"last":true}}`)
		passed <- outcome{answer, err}
	}()
	for received(remote)-before < megabytes<<20/2 {
		if time.Since(began) > user.Timeout {
			t.Fatalf("%d bytes came within %s\n%s", received(remote)-before, user.Timeout, connection.log)
		}
		select {
		case early := <-passed:
			t.Fatalf("it was over before it was cut: %v", early)
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
	if last.err != nil || last.answer["passed"] == nil {
		t.Fatalf("the pass: %v, %v\n%s", last.answer, last.err, connection.log)
	}
	took := time.Since(began)
	sent := float64(received(remote)-before) / (megabytes << 20)
	t.Logf("%d MiB in %s, %.3f times their bytes", megabytes, took.Round(time.Second), sent)
	// What was under way in each lane when the relay was killed comes again.
	if sent > 1.05+dataLanes*megabytesUnderWay/float64(megabytes) {
		t.Errorf("%.3f times the content came to the target", sent)
	}
	if least := time.Duration(megabytes/8-1) * time.Second; took < least {
		t.Errorf("it took %s, at %s a second it may not take less than %s", took, bandwidth, least)
	}

	verified, err := order(remote, `{"verify":{"all":true}}`)
	if err != nil || verified["verified"]["different"] != 0.0 {
		t.Fatalf("the verification: %v, %v", verified, err)
	}
	if _, err := remote.Kubectl("exec", "target", "-c", helper, "--", "sh", "-c",
		fmt.Sprintf(`echo '"finish"' | nc %s`, strings.ReplaceAll(ordersAddress, ":", " "))); err != nil {
		t.Fatal(err)
	}
	if here, there := home.Exec("source", sums), remote.Exec("target", sums); here != there || len(here) < 1000 {
		user.Violated(t, "the source has\n%s\nthe target has\n%s", here, there)
	}
	if links := remote.Exec("target", "stat -c %h /data/d/small"); links != "2" {
		t.Errorf("the hard link is %s files", links)
	}
}
