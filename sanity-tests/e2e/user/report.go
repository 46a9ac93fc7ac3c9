package user

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"storage.liqo.io/sanity-tests/chart"
)

const (
	// reportLimit is the timeout of the report of a namespace, commandLimit that of each part.
	reportLimit  = time.Minute
	commandLimit = 10 * time.Second
	// longestLine and logLines keep it short.
	longestLine = 600
	logLines    = 50
)

// reported are the tests that have logged the state of the driver, which they do once for all their
// namespaces.
var reported sync.Map // of *testing.T

// report logs the state of the namespace and of the driver.
func (n *Namespace) report() {
	ctx, cancel := context.WithTimeout(context.Background(), reportLimit)
	defer cancel()
	n.show(ctx, "pods, claims and snapshots", "get", "pods,pvc,volumesnapshots", "-o", "wide")
	n.show(ctx, "attachments", "get", "volumeattachments", "-o", "custom-columns=VOLUME:.spec.source.persistentVolumeName,NODE:.spec.nodeName,ATTACHED:.status.attached,DELETED:.metadata.deletionTimestamp,ERROR:.status.detachError.message")
	n.show(ctx, "volumes in use on nodes", "get", "nodes", "-o", "custom-columns=NODE:.metadata.name,INUSE:.status.volumesInUse")
	n.show(ctx, "events", "get", "events", "--sort-by=.lastTimestamp", "-o", "custom-columns=OBJECT:.involvedObject.name,REASON:.reason,MESSAGE:.message")
	home := lab.Clusters()[0]
	if n.Cluster == home {
		for _, kind := range []string{"volumemoves", "namespaceoffloadings"} {
			n.show(ctx, kind, "get", kind, "-o", statusOfEach)
		}
	}
	if _, again := reported.LoadOrStore(n.t, true); !again {
		driver := Namespace{Name: chart.Namespace, Cluster: home, t: n.t, kubectl: n.kubectl, began: n.began}
		driver.reportDriver(ctx)
	}
}

// statusOfEach prints a line for each object of a kind of the driver.
const statusOfEach = `jsonpath={range .items[*]}{.metadata.name}: generation {.metadata.generation}, deleted {.metadata.deletionTimestamp}, {.status}{"\n"}{end}`

// reportDriver logs the state of the driver, and its log since the start of the test.
func (n *Namespace) reportDriver(ctx context.Context) {
	n.show(ctx, "remoteclusters", "get", "remoteclusters", "-o", statusOfEach)
	n.show(ctx, "pods, with restarts and the exit codes before them", "get", "pods", "-o", "custom-columns=POD:.metadata.name,NODE:.spec.nodeName,PHASE:.status.phase,READY:.status.containerStatuses[*].ready,"+
		"RESTARTS:.status.containerStatuses[*].restartCount,CODES:.status.containerStatuses[*].lastState.terminated.exitCode")
	for _, one := range []struct{ component, container string }{
		{"controller", "driver"}, {"node", "driver"}, {"fabric", "fabric"},
	} {
		n.show(ctx, "log of "+one.component, "logs", "--selector=app.kubernetes.io/component="+one.component, "--container="+one.container, "--prefix",
			fmt.Sprintf("--tail=%d", logLines), "--since-time="+n.began.UTC().Format(time.RFC3339))
	}
}

// show logs the output of kubectl, if any.
func (n *Namespace) show(ctx context.Context, heading string, args ...string) {
	ctx, cancel := context.WithTimeout(ctx, commandLimit)
	defer cancel()
	out, err := n.run(ctx, append(args, "--request-timeout="+commandLimit.String())...)
	if err != nil && out == "" {
		out = err.Error()
	}
	if out = strings.TrimSpace(out); out != "" {
		n.t.Logf("--- %s in %s of cluster %s\n%s", heading, n.Name, n.Cluster.Name(), cutLines(out, longestLine))
	}
}

// cutLines truncates long lines.
func cutLines(text string, longest int) string {
	var short strings.Builder
	for line := range strings.Lines(text) {
		body, found := strings.CutSuffix(line, "\n")
		short.WriteString(cut(body, longest))
		if found {
			short.WriteByte('\n')
		}
	}
	return short.String()
}

func cut(line string, longest int) string {
	if len(line) <= longest {
		return line
	}
	return strings.ToValidUTF8(line[:longest], "") + "…"
}
