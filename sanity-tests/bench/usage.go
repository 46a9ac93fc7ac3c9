package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"storage.liqo.io/sanity-tests/chart"
)

// clockTick is the unit of CPU times in /proc: Linux fixes USER_HZ at 100.
const clockTick = 10 * time.Millisecond

// Process is one running process of the driver or a sidecar.
type Process struct {
	Name string // such as "liqo-csi controller" or "csi-provisioner"
	PID  int
	CPU  time.Duration
	RSS  int64 // bytes
	Peak int64 // maximum of RSS
	// Mapped is the part of RSS that is mapped files, which the kernel can read again.
	Mapped int64
}

// Installation holds the uids of the pods of an installation: other pods in the lab run the same programs.
type Installation struct{ pods []string }

// Find returns the driver's pods in a cluster.
func Find(ctx context.Context, client kubernetes.Interface) (Installation, error) {
	return FindIn(ctx, client, chart.Namespace)
}

// FindIn returns all pods of a namespace.
func FindIn(ctx context.Context, client kubernetes.Interface, namespace string) (Installation, error) {
	pods, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return Installation{}, err
	}
	var found Installation
	for _, pod := range pods.Items {
		if pod.DeletionTimestamp == nil {
			found.pods = append(found.pods, string(pod.UID))
		}
	}
	return found, nil
}

// Processes returns the running processes of the installation whose command line begins with one of
// names.
func (i Installation) Processes(names ...string) ([]Process, error) {
	return processes(func(cgroups string) bool {
		return slices.ContainsFunc(i.pods, func(uid string) bool { return strings.Contains(cgroups, uid) })
	}, names...)
}

func processes(ours func(cgroups string) bool, names ...string) ([]Process, error) {
	entries, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	var found []Process
	for _, entry := range entries {
		line, err := os.ReadFile(entry)
		if err != nil {
			continue // the process has ended
		}
		cgroups, err := os.ReadFile(filepath.Join(filepath.Dir(entry), "cgroup"))
		if err != nil || !ours(string(cgroups)) {
			continue
		}
		words := strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")
		words[0] = filepath.Base(words[0])
		for _, name := range names {
			if hasPrefix(words, strings.Fields(name)) {
				if p, err := readProcess(filepath.Dir(entry), name); err == nil {
					found = append(found, p)
				}
			}
		}
	}
	return found, nil
}

// Received returns the bytes that the pod of each replica of the controller has received; its
// containers share one network.
func (i Installation) Received() ([]int64, error) {
	found, err := i.Processes(Controller)
	if err != nil {
		return nil, err
	}
	received := make([]int64, len(found))
	for n, process := range found {
		table, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", process.PID))
		if err != nil {
			return nil, err
		}
		if received[n], err = receivedBytes(string(table)); err != nil {
			return nil, err
		}
	}
	return received, nil
}

// receivedBytes sums the received bytes of all interfaces except loopback in a table of proc(5),
// net/dev.
func receivedBytes(table string) (int64, error) {
	var sum int64
	for line := range strings.Lines(table) {
		name, counters, isInterface := strings.Cut(line, ":")
		if !isInterface || strings.TrimSpace(name) == "lo" {
			continue
		}
		var bytes int64
		if _, err := fmt.Sscan(counters, &bytes); err != nil {
			return 0, fmt.Errorf("net/dev is not as in proc(5): %w", err)
		}
		sum += bytes
	}
	return sum, nil
}

func hasPrefix(words, prefix []string) bool {
	return len(words) >= len(prefix) && slices.Equal(words[:len(prefix)], prefix)
}

func readProcess(dir, name string) (Process, error) {
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return Process{}, err
	}
	// The command in parentheses may contain spaces.
	_, rest, found := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	if !found || len(fields) < 22 {
		return Process{}, fmt.Errorf("%s/stat is not as in proc(5)", dir)
	}
	user, err1 := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	pages, err3 := strconv.ParseInt(fields[21], 10, 64)
	if err1 != nil || err2 != nil || err3 != nil {
		return Process{}, fmt.Errorf("%s/stat is not as in proc(5)", dir)
	}
	peak, mapped, err := readMemory(filepath.Join(dir, "status"))
	if err != nil {
		return Process{}, err
	}
	pid, err := strconv.Atoi(filepath.Base(dir))
	return Process{name, pid, time.Duration(user+system) * clockTick, pages * int64(os.Getpagesize()), peak, mapped}, err
}

func readMemory(file string) (peak, mapped int64, err error) {
	status, err := os.ReadFile(file)
	if err != nil {
		return 0, 0, err
	}
	fields := map[string]*int64{"VmHWM": &peak, "RssFile": &mapped}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		field, wanted := fields[name]
		if !wanted {
			continue
		}
		if _, err := fmt.Sscanf(value, "%d kB", field); err != nil {
			return 0, 0, fmt.Errorf("%s of %s is not as in proc(5)", name, file)
		}
		*field <<= 10
		delete(fields, name)
	}
	for name := range fields {
		return 0, 0, fmt.Errorf("%s has no %s", file, name)
	}
	return peak, mapped, nil
}

// sum returns the CPU time of all processes of that name, and the largest RSS.
func sum(all []Process, name string) (cpu time.Duration, rss int64) {
	for _, p := range all {
		if p.Name == name {
			cpu += p.CPU
			rss = max(rss, p.RSS)
		}
	}
	return cpu, rss
}

// Calls are numbers of API calls. Watches are not counted, the lists before them are.
type Calls struct{ Reads, Lists, Writes int }

// AuditLog counts API calls by user agent from the API server's audit log.
type AuditLog struct {
	Path   string
	offset int64
}

// Mark makes Calls count from here.
func (a *AuditLog) Mark() error {
	info, err := os.Stat(a.Path)
	if err != nil {
		return err
	}
	a.offset = info.Size()
	return nil
}

// CallsWhenIdle returns Calls once none of these agents has written for a second: writes after an
// operation are part of its cost, and must not be counted for the next one.
func (a *AuditLog) CallsWhenIdle(ctx context.Context, agents ...string) (map[string]Calls, error) {
	const idle = time.Second
	last, since := -1, time.Now()
	for {
		calls, err := a.Calls()
		if err != nil {
			return nil, err
		}
		writes := 0
		for _, agent := range agents {
			writes += calls[agent].Writes
		}
		if writes != last {
			last, since = writes, time.Now()
		} else if time.Since(since) >= idle {
			return calls, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%v still write: %w", agents, context.Cause(ctx))
		case <-time.After(idle / 10):
		}
	}
}

// Calls counts the calls since Mark by the first word of the user agent, without those on leases
// and access reviews.
func (a *AuditLog) Calls() (map[string]Calls, error) {
	return a.count(isCounted)
}

func isCounted(resource string) bool {
	return resource != "leases" && !strings.HasSuffix(resource, "reviews")
}

// CallsOn counts the same of one resource.
func (a *AuditLog) CallsOn(resource string) (map[string]Calls, error) {
	return a.count(func(of string) bool { return of == resource })
}

// WritesWhenIdle counts the writes of an agent as CallsWhenIdle does, by verb and resource, such as "patch pods/status".
func (a *AuditLog) WritesWhenIdle(ctx context.Context, agent string) (map[string]int, error) {
	if _, err := a.CallsWhenIdle(ctx, agent); err != nil {
		return nil, err
	}
	byKind := map[string]int{}
	err := a.each(func(of string, call auditedCall) {
		if of == agent && call.isWrite() && isCounted(call.ObjectRef.Resource) {
			byKind[strings.TrimSuffix(call.Verb+" "+call.ObjectRef.Resource+"/"+call.ObjectRef.Subresource, "/")]++
		}
	})
	return byKind, err
}

func (a *AuditLog) count(counts func(resource string) bool) (map[string]Calls, error) {
	byAgent := map[string]Calls{}
	err := a.each(func(agent string, call auditedCall) {
		if !counts(call.ObjectRef.Resource) {
			return
		}
		calls := byAgent[agent]
		switch {
		case call.isWrite():
			calls.Writes++
		case call.Verb == "get":
			calls.Reads++
		case call.Verb == "list":
			calls.Lists++
		}
		byAgent[agent] = calls
	})
	return byAgent, err
}

// auditedCall is the part of a line of the audit log that counts.
type auditedCall struct {
	Stage, Verb, UserAgent string
	ObjectRef              struct{ Resource, Subresource string }
}

func (c auditedCall) isWrite() bool {
	return slices.Contains([]string{"create", "update", "patch", "delete", "deletecollection"}, c.Verb)
}

// each runs do for each completed call since Mark, with the first word of its user agent.
func (a *AuditLog) each(do func(agent string, call auditedCall)) error {
	file, err := os.Open(a.Path)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.Seek(a.offset, io.SeekStart); err != nil {
		return err
	}
	scan := bufio.NewScanner(file)
	scan.Buffer(nil, 4<<20)
	for scan.Scan() {
		var call auditedCall
		if json.Unmarshal(scan.Bytes(), &call) == nil && call.Stage == "ResponseComplete" {
			agent, _, _ := strings.Cut(call.UserAgent, "/")
			do(agent, call)
		}
	}
	return scan.Err()
}
