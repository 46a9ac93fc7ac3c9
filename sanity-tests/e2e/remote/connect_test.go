package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
)

// This file runs connect and disconnect. Its tests are serial, because disconnect refuses while twins of other
// tests are in the remote cluster.

// exitBlocked is the exit code of disconnect while objects of the home cluster are in the remote one.
const exitBlocked = 2

// connection is a pair whose RemoteCluster is created by the command.
type connection struct {
	*pair
	// access is the namespace of the identity in the remote cluster.
	access string
	// server is the address of the remote cluster for pods.
	server string
	// anonymous has the address for tests, without credentials.
	anonymous *rest.Config
}

func newConnection(t *testing.T) *connection {
	t.Helper()
	ensureShared(t)
	p := newRemoteNamespace(t)
	c := &connection{pair: p, access: p.remote.Name + "-access"}
	config, err := clientcmd.Load(shared.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	c.server = config.Clusters[config.Contexts[config.CurrentContext].Cluster].Server
	admin, err := c.remote.Cluster.Config()
	if err != nil {
		t.Fatal(err)
	}
	c.anonymous = rest.AnonymousClientConfig(admin)
	t.Cleanup(c.cleanUp)
	c.createHomeNamespace()
	return c
}

// runOnBoth runs the command as administrator of both clusters, and returns its output and exit code.
func (c *connection) runOnBoth(ctx context.Context, command string, args ...string) (out string, code int) {
	c.t.Helper()
	program, err := driver.Compile(ctx)
	if err != nil {
		c.t.Fatal(err)
	}
	all := append([]string{
		command, c.cluster, "--kubeconfig", c.home.Cluster.Kubeconfig(), "--remote-kubeconfig", c.remote.Cluster.Kubeconfig(),
		"--remote-namespace", c.access,
	}, args...)
	run := exec.CommandContext(ctx, program, all...)
	var buffer bytes.Buffer
	run.Stdout, run.Stderr = &buffer, &buffer
	err = run.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		c.t.Fatalf("%s: %v", run, err)
	}
	return buffer.String(), run.ProcessState.ExitCode()
}

// connect runs connect, which must succeed and print these words.
func (c *connection) connect(words []string, args ...string) {
	c.t.Helper()
	args = append([]string{"--server", c.server, "--node-selector", clusterLabel + "=" + c.cluster}, args...)
	out, code := c.runOnBoth(c.t.Context(), "connect", args...)
	if code != 0 {
		c.t.Fatalf("connect exits with %d:\n%s", code, out)
	}
	for _, word := range words {
		if !strings.Contains(out, word) {
			c.t.Errorf("connect does not print %q:\n%s", word, out)
		}
	}
}

// disconnect runs disconnect, which must exit with this code and print these words.
func (c *connection) disconnect(want int, words ...string) {
	c.t.Helper()
	out, code := c.runOnBoth(c.t.Context(), "disconnect")
	if code != want {
		c.t.Fatalf("disconnect exits with %d, not %d:\n%s", code, want, out)
	}
	for _, word := range words {
		if !strings.Contains(out, word) {
			c.t.Errorf("disconnect does not print %q:\n%s", word, out)
		}
	}
}

// Connects, uses a volume, changes the level, revokes tokens, and disconnects.
func TestClustersAreConnectedByOneCommand(t *testing.T) {
	c := newConnection(t)
	// The lab's kubeconfig for administrators has an address of this machine.
	out, code := c.runOnBoth(t.Context(), "connect", "--node-selector", clusterLabel+"="+c.cluster)
	if code == 0 || !strings.Contains(out, "--server") {
		t.Fatalf("connect accepts an address that pods cannot reach (%d):\n%s", code, out)
	}

	c.connect([]string{"level namespaced", "Reached: Kubernetes", "It may not"}, "--level", "namespaced", "--namespaces", c.remote.Name)
	c.startNode()
	found := c.createWithData()
	c.disconnect(exitBlocked, c.home.Name+"/data", "liqo-csi move volume")

	// The level full deletes the roles in namespaces, and the volume stays usable.
	c.connect([]string{"level full"}, "--level", "full")
	roles := c.remote.Client.RbacV1().Roles(c.remote.Name)
	if _, err := roles.Get(t.Context(), "liqo-csi-remote."+c.access, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the role of the earlier level: %v", err)
	}
	c.wantData()

	// Without the Secret no token is valid; the command creates it again, with another token.
	secrets := c.remote.Client.CoreV1().Secrets(c.access)
	if err := secrets.Delete(t.Context(), "liqo-csi-session", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.waitCondition("data", "Unknown", "ClusterUnreachable")
	c.connect(nil)
	c.waitCondition("data", "True", "TwinBound")
	c.wantData()

	c.deleteClaim("data")
	c.waitVolumeDeleted(found)
	c.disconnect(0)
	c.wantNothingLeft()
	c.disconnect(0) // again, with nothing to do
}

// The identity may renew its token, but not request one for another account, without the session or for longer.
func TestTokensOfASessionAreRevokedWithIt(t *testing.T) {
	c := newConnection(t)
	c.connect(nil, "--level", "full")
	identity := c.clientWith(c.token())
	const day = int64(24 * 3600)
	request := func(account, bound string, seconds int64) error {
		_, err := identity.CoreV1().ServiceAccounts(c.access).CreateToken(t.Context(), account, tokenRequest(bound, seconds), metav1.CreateOptions{})
		return err
	}
	c.remote.Eventually("the identity may renew its token", func(context.Context) (string, error) {
		if err := request("liqo-csi-remote", "liqo-csi-session", day); err != nil {
			return err.Error(), nil
		}
		return "", nil
	})
	// The API server enforces new policies with a delay.
	for what, err := range map[string]func() error{
		"one that is bound to nothing":   func() error { return request("liqo-csi-remote", "", day) },
		"one that is valid for too long": func() error { return request("liqo-csi-remote", "liqo-csi-session", 31*day) },
		"one of another account":         func() error { return request("default", "liqo-csi-session", day) },
	} {
		c.remote.Eventually("the API server refuses "+what, func(context.Context) (string, error) {
			if got := err(); !apierrors.IsForbidden(got) {
				return fmt.Sprintf("it returns %v", got), nil
			}
			return "", nil
		})
	}
	c.disconnect(0)
	c.wantNothingLeft()
}

// wantNothingLeft checks that disconnect has deleted everything in both clusters.
func (c *connection) wantNothingLeft() {
	c.t.Helper()
	_, err := c.home.Client.CoreV1().Secrets(chart.Namespace).Get(c.t.Context(), "remote-"+c.cluster, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		c.t.Errorf("the Secret at home is not deleted: %v", err)
	}
	role := "liqo-csi-remote." + c.access
	if _, err := c.remote.Client.RbacV1().ClusterRoles().Get(c.t.Context(), role, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		c.t.Errorf("the remote ClusterRole is not deleted: %v", err)
	}
	policies := c.remote.Client.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	if _, err := policies.Get(c.t.Context(), role+"-tokens", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		c.t.Errorf("the remote policy is not deleted: %v", err)
	}
	c.remote.WaitDeleted("namespace", c.access)
}

// cleanUp disconnects after a failed test. It retries while twins of its claims exist.
func (c *connection) cleanUp() {
	if !c.t.Failed() || c.home == nil {
		return
	}
	ctx := user.CleanupContext(c.t)
	for {
		out, code := c.runOnBoth(ctx, "disconnect")
		if code == 0 {
			return
		}
		select {
		case <-ctx.Done():
			c.t.Errorf("%s is not disconnected (%d): %s", c.cluster, code, out)
			return
		case <-time.After(2 * time.Second):
		}
	}
}

// connect prints and creates the same objects as the chart.
func TestConnectPrintsWhatTheChartRenders(t *testing.T) {
	program, err := driver.Compile(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	helm, err := chart.New(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, level := range chart.Levels {
		t.Run(level, func(t *testing.T) {
			args := []string{"connect", "milan", "--cluster-id", "rome.1", "--remote-namespace", "access", "--level", level,
				"--node-selector", "a=b", "--storage-class", "fast", "-o", "yaml", "--only", "remote"}
			var listed []string
			if level == "namespaced" || level == "minimal" {
				listed = []string{"apps", "more"}
				args = append(args, "--namespaces", strings.Join(listed, ","))
			}
			printed, err := exec.CommandContext(t.Context(), program, args...).Output()
			if err != nil {
				t.Fatal(err)
			}
			rendered, err := helm.Render(t.Context(), "home", "access", chart.RemoteValues(level, "rome.1", listed...))
			if err != nil {
				t.Fatal(err)
			}
			got, want := objectsByName(t, printed), objectsByName(t, chart.AsConnectMakesIt(rendered))
			// With Helm it is created by --create-namespace.
			delete(got, "Namespace /access")
			if !reflect.DeepEqual(got, want) {
				t.Errorf("connect prints\n%v\nand the chart renders\n%v", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
			}
		})
	}
}

// objectsByName parses YAML, and returns its objects by kind, namespace and name.
func objectsByName(t *testing.T, text []byte) map[string]map[string]any {
	t.Helper()
	all := map[string]map[string]any{}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		var content map[string]any
		if err := decoder.Decode(&content); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		if content != nil {
			object := unstructured.Unstructured{Object: content}
			all[fmt.Sprintf("%s %s/%s", object.GetKind(), object.GetNamespace(), object.GetName())] = content
		}
	}
}
