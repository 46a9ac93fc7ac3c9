package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
)

// This file tests the status and the commands that show a cluster to administrators.

// status is the status of a RemoteCluster.
type status struct {
	Conditions                           []metav1.Condition
	Classes, Limits                      []string
	ServerVersion, LastError, DeclaredBy string
	Volumes, Snapshots                   int
	Credentials                          struct{ Expires string }
}

// listedCluster is a cluster in the output of `liqo-csi clusters`, listedVolume a volume in that of `liqo-csi volumes`.
type listedCluster struct {
	ID, Fabric, Object, State, Message, ServerVersion, Policy string
	Nodes, Classes, Limits, Waiting                           []string
	Volumes                                                   int
}

type listedVolume struct {
	Claim, Twin                                       *struct{ Namespace, Name string }
	State, Message, Advice, Class, RealClass, Cluster string
	HeldByGravity                                     bool
	Nodes                                             []string
}

func TestReachableUnreachableAndDeletedClusterIsShown(t *testing.T) {
	p := newDedicatedPair(t, nil)
	version, err := p.remote.Client.Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	p.startPod("user", "data", "liqo-reference")
	p.waitCondition("data", corev1.ConditionTrue, "TwinBound")

	// Other tests create virtual classes without a real one.
	ofClass := func(limit string) bool { return strings.Contains(limit, "cannot have volumes in the cluster") }
	usable := func(s status) bool {
		classes := slices.Contains(s.Classes, "reference") && slices.Contains(s.Classes, "reference-local")
		return hasCondition(s, "Ready", metav1.ConditionTrue, "Usable") && hasCondition(s, "Reachable", metav1.ConditionTrue, "Answers") &&
			s.ServerVersion == version.GitVersion && classes && len(slices.DeleteFunc(s.Limits, ofClass)) == 0 && s.LastError == ""
	}
	p.waitStatus("it is usable", usable)
	p.waitListed("the commands show it as ready", func(c listedCluster, v listedVolume) bool {
		cluster := c.State == "Ready" && c.Fabric == "native" && c.Object == "RemoteCluster "+p.cluster && c.ServerVersion == version.GitVersion &&
			c.Policy == "Optimistic" && slices.Equal(c.Nodes, []string{p.node}) && c.Volumes == 1 && slices.Contains(c.Classes, "reference") && len(c.Waiting) == 0
		volume := v.State == "Bound" && v.Cluster == p.cluster && v.RealClass == "reference" && slices.Equal(v.Nodes, []string{p.node}) &&
			v.Twin != nil && v.Twin.Namespace == p.remote.Name && v.Twin.Name == "data" && !v.HeldByGravity
		return cluster && volume
	})
	p.wantTable("clusters", nil, p.cluster, "native", version.GitVersion, p.node)
	p.wantTable("volumes", []string{"--namespace", p.home.Name}, "data", p.cluster, p.node, p.remote.Name+"/data")

	p.putSecret(kubeconfigWith(t, unusedPort(t)))
	p.declare(spec{"kubeconfigSecretRef": map[string]any{"name": p.cluster}})
	p.waitStatus("it is unreachable", func(s status) bool {
		return hasCondition(s, "Ready", metav1.ConditionFalse, "Unreachable") && hasCondition(s, "Reachable", metav1.ConditionFalse, "Unreachable") &&
			s.LastError != "" && s.ServerVersion == "" && len(s.Classes) == 0
	})
	p.waitCondition("data", corev1.ConditionUnknown, "ClusterUnreachable")
	p.waitListed("the commands show it as unreachable", func(c listedCluster, v listedVolume) bool {
		return c.State == "Unreachable" && c.Message != "" && c.Volumes == 1 && v.State == "ClusterUnreachable" && v.Cluster == p.cluster
	})
	p.wantTable("clusters", nil, "Unreachable", "└ RemoteCluster "+p.cluster+": ")

	p.putSecret(shared.kubeconfig)
	p.waitStatus("it is usable again", usable)
	p.waitCondition("data", corev1.ConditionTrue, "TwinBound")

	p.deleteRemoteCluster()
	p.waitDeletionBlocked(p.home.Name + "/data")
}

// unusedPort sets the server to a port of the remote cluster on which nothing listens.
func unusedPort(t *testing.T) func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo) {
	return func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) {
		server, err := url.Parse(c.Server)
		if err != nil {
			t.Fatal(err)
		}
		server.Host = net.JoinHostPort(server.Hostname(), "1")
		c.Server = server.String()
	}
}

func hasCondition(s status, condition string, wanted metav1.ConditionStatus, reason string) bool {
	found := meta.FindStatusCondition(s.Conditions, condition)
	return found != nil && found.Status == wanted && found.Reason == reason
}

func (p *pair) waitStatus(what string, wanted func(status) bool) {
	p.t.Helper()
	all, err := remoteClusters(p.home.Cluster)
	if err != nil {
		p.t.Fatal(err)
	}
	p.home.Eventually(what, func(ctx context.Context) (string, error) {
		object, err := all.Get(ctx, p.cluster, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		text, err := object.MarshalJSON()
		if err != nil {
			return "", err
		}
		var read struct{ Status status }
		if err := json.Unmarshal(text, &read); err != nil {
			return "", err
		}
		if wanted(read.Status) {
			return "", nil
		}
		return fmt.Sprintf("it is %+v", read.Status), nil
	})
}

// waitListed waits until `liqo-csi clusters` shows the pair's cluster, and `liqo-csi volumes` the claim data, as
// wanted.
func (p *pair) waitListed(what string, wanted func(listedCluster, listedVolume) bool) {
	p.t.Helper()
	p.home.Eventually(what, func(ctx context.Context) (string, error) {
		var clusters struct{ Clusters []listedCluster }
		var volumes struct{ Volumes []listedVolume }
		for into, args := range map[any][]string{
			&clusters: {"clusters", "--output", "json"},
			&volumes:  {"volumes", "--namespace", p.home.Name, "--output", "json"},
		} {
			text, err := p.liqoCSI(ctx, args...)
			if err != nil {
				return "", err
			}
			if err := json.Unmarshal([]byte(text), into); err != nil {
				return "", fmt.Errorf("%w: %s", err, text)
			}
		}
		cluster := slices.IndexFunc(clusters.Clusters, func(c listedCluster) bool { return c.ID == p.cluster })
		volume := slices.IndexFunc(volumes.Volumes, func(v listedVolume) bool { return v.Claim != nil && v.Claim.Name == "data" })
		if cluster < 0 || volume < 0 {
			return fmt.Sprintf("they show %+v, %+v", clusters, volumes), nil
		}
		if wanted(clusters.Clusters[cluster], volumes.Volumes[volume]) {
			return "", nil
		}
		return fmt.Sprintf("they show %+v, %+v", clusters.Clusters[cluster], volumes.Volumes[volume]), nil
	})
}

// waitCordonedReported waits until both commands show that the pod waits for its cordoned node, and what to do.
func (p *pair) waitCordonedReported(pod, claim string) {
	p.t.Helper()
	why := fmt.Sprintf("its pod %s waits because its data is in the cluster %s, only reached through %s (cordoned); it cannot be scheduled: ", pod, p.cluster, p.node)
	p.waitListed("why the pod waits", func(c listedCluster, v listedVolume) bool {
		waits := func(line string) bool { return strings.HasPrefix(line, p.home.Name+"/"+claim+": "+why) }
		return slices.ContainsFunc(c.Waiting, waits) && v.HeldByGravity && v.State == "Bound" &&
			strings.HasPrefix(v.Message, why) && strings.Contains(v.Advice, "Uncordon")
	})
	p.wantTable("clusters", nil, "→ "+p.home.Name+"/"+claim+": "+why)
	p.wantTable("volumes", []string{"--namespace", p.home.Name}, "└ "+why, "→ Uncordon")
}

// wantTable checks that the output for people has these words.
func (p *pair) wantTable(command string, args []string, words ...string) {
	p.t.Helper()
	table, err := p.liqoCSI(p.t.Context(), append([]string{command}, args...)...)
	if err != nil {
		p.t.Fatal(err)
	}
	for _, word := range words {
		if !strings.Contains(table, word) {
			p.t.Errorf("liqo-csi %s does not print %q:\n%s", command, word, table)
		}
	}
}

// liqoCSI runs a command as administrator of the home cluster, and returns its standard output.
func (p *pair) liqoCSI(ctx context.Context, args ...string) (string, error) {
	program, err := driver.Compile(ctx)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, user.Timeout)
	defer cancel()
	run := exec.CommandContext(ctx, program, append(args, "--kubeconfig", p.home.Cluster.Kubeconfig())...)
	var stderr bytes.Buffer
	run.Stderr = &stderr
	out, err := run.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s: %w: %s", run, err, stderr.String())
	}
	return string(out), nil
}
