// Package offload tests how the driver's fabric offloads namespaces and runs their pods in the
// other cluster, with the rights that the chart grants there.
package offload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/components"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
)

func TestMain(m *testing.M) {
	liqoSource, errLiqoSource = user.BeforeTests("Liqo's examples", func(ctx context.Context) (string, error) {
		return components.Source(ctx, "liqo", "github.com/liqotech/liqo")
	})
	user.MainWithDriver(m, shared.remove)
}

const (
	// name is the name of the RemoteCluster.
	name = "offloaded"
	node = "kosmos-cluster38" // as in the document about Kosmos
)

var (
	offloadings = schema.GroupVersionResource{Group: "offloading.liqo.io", Version: "v1beta1", Resource: "namespaceoffloadings"}
	clustersOf  = driver.RemoteClusters
)

// shared is created by the first test and removed after the last.
var shared setup

type setup struct {
	once   sync.Once
	err    error
	home   *clusters.Cluster
	access *driver.Access
}

func prepare(t *testing.T) {
	t.Helper()
	home, remote := user.Cluster(t, "home"), user.Cluster(t, "remote")
	shared.once.Do(func() { shared.err = shared.make(context.WithoutCancel(t.Context()), home, remote) })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
}

func (s *setup) make(ctx context.Context, home, remote *clusters.Cluster) error {
	s.home = home
	if err := driver.DefineOffloading(ctx, home); err != nil {
		return err
	}
	fabric := driver.Fabric()
	fabric["keepDaemonSetsOff"] = true
	// TestEveryFieldOfAPod sends volumes of all types.
	everyType := chart.Values{"volumeTypes": "any"}
	// The driver removes its finalizer from a twin that a user deletes after this time. The default is longer than
	// user.Timeout.
	values := chart.Values{
		"fabric":       fabric,
		"remoteAccess": chart.Values{"pods": everyType},
		"controller":   chart.Values{"orphanGrace": "1m"},
	}
	if err := driver.Install(ctx, home, driver.Options{Progress: os.Stderr, Values: values}); err != nil {
		return err
	}
	changes := chart.Values{"labels": chart.Values{"tier": "edge"}, "pods": everyType}
	access, kubeconfig, err := driver.GrantAccess(ctx, home, remote, changes)
	s.access = access
	if err != nil {
		return fmt.Errorf("access to the remote cluster: %w", err)
	}
	return driver.Declare(ctx, home, name, kubeconfig, map[string]any{
		"nodeName":   node,
		"labels":     map[string]any{"region": "europe", "topology.liqo.io/region": "south"},
		"labelsFrom": map[string]any{"namespace": "liqo-csi-access", "name": "liqo-csi-labels"},
		// An additional taint, which does not repel pods.
		"taints":  []any{map[string]any{"key": "kosmos.io/node", "value": "true", "effect": "PreferNoSchedule"}},
		"network": driver.Routed(remote),
	})
}

// condition returns the reason and message of a condition of the remote cluster.
func condition(object *unstructured.Unstructured, kind string) (reason, message string) {
	all, _, _ := unstructured.NestedSlice(object.Object, "status", "remoteNamespacesConditions", name)
	for _, one := range all {
		if one, is := one.(map[string]any); is && one["type"] == kind {
			reason, _ = one["reason"].(string)
			message, _ = one["message"].(string)
		}
	}
	return reason, message
}

func (s *setup) remove(ctx context.Context) error {
	if s.home == nil {
		return nil
	}
	err := driver.Undeclare(ctx, s.home, name)
	if s.access != nil {
		err = errors.Join(err, s.access.Revoke(ctx))
	}
	return errors.Join(err, driver.UndefineOffloading(ctx, s.home))
}

func dynamicClient(cluster *clusters.Cluster) (dynamic.Interface, error) {
	config, err := cluster.Config()
	if err != nil {
		return nil, err
	}
	return dynamic.NewForConfig(config)
}

// run runs the program. The error contains its stderr.
func run(ctx context.Context, args ...string) (string, error) {
	program, err := driver.Compile(ctx)
	if err != nil {
		return "", err
	}
	// No command has a --timeout that is longer than user.Timeout.
	ctx, cancel := context.WithTimeout(ctx, 2*user.Timeout)
	defer cancel()
	command := exec.CommandContext(ctx, program, args...)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		return string(out), fmt.Errorf("liqo-csi %s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return string(out), nil
}
