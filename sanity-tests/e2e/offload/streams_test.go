package offload

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"

	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
)

// streamLimit is the timeout of commands that stream to or from a pod.
const streamLimit = time.Minute

// kubectl runs kubectl at home as the pod's user does, with each protocol if there are two.
func (n tenant) kubectl(ctx context.Context, webSockets bool, args ...string) *exec.Cmd {
	args = append([]string{"--kubeconfig", n.Cluster.Kubeconfig(), "--namespace", n.Name}, args...)
	command := exec.CommandContext(ctx, n.Cluster.Kubectl(), args...)
	command.WaitDelay = 5 * time.Second
	flag := fmt.Sprint(webSockets)
	command.Env = append(os.Environ(), "KUBECTL_REMOTE_COMMAND_WEBSOCKETS="+flag, "KUBECTL_PORT_FORWARD_WEBSOCKETS="+flag)
	return command
}

// stream runs kubectl and retries if the stream did not start.
func (n tenant) stream(webSockets bool, input string, args ...string) (out string, err error) {
	for range 3 {
		ctx, cancel := context.WithTimeout(n.t.Context(), streamLimit)
		command := n.kubectl(ctx, webSockets, args...)
		if input != "" {
			command.Stdin = strings.NewReader(input)
		}
		var text []byte
		text, err = command.Output()
		if ctx.Err() != nil {
			err = fmt.Errorf("not completed within %s: %w", streamLimit, err)
		}
		cancel()
		out = string(text)
		var failed *exec.ExitError
		if !errors.As(err, &failed) || !user.NotStarted(string(failed.Stderr)) {
			return out, err
		}
	}
	return out, err
}

// stderr returns the stderr of a failed command.
func stderr(err error) string {
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		return string(failed.Stderr)
	}
	return ""
}

func TestStreamsReachThePods(t *testing.T) {
	n, _ := offloadedTenant(t)
	n.Pod("web", "", stateless, func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Command = []string{"sh", "-c",
			"echo started; mkdir /www && echo hello > /www/index.html && exec httpd -f -p 8080 -h /www"}
	})
	n.WaitReady("web")
	n.Eventually("the log to be readable", func(context.Context) (string, error) {
		out, err := n.stream(true, "", "logs", "web")
		if err != nil || out != "started\n" {
			return fmt.Sprintf("%v: %s%s", err, out, stderr(err)), nil
		}
		return "", nil
	})
	for _, webSockets := range []bool{true, false} {
		t.Run(fmt.Sprintf("web sockets %t", webSockets), func(t *testing.T) {
			out, err := n.stream(webSockets, "", "exec", "web", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
			var failed *exec.ExitError
			if !errors.As(err, &failed) || failed.ExitCode() != 7 || out != "out\n" || !strings.Contains(string(failed.Stderr), "err\n") {
				t.Errorf("exec: %v: %q %s", err, out, stderr(err))
			}
			text := strings.Repeat("0123456789abcdef", 64<<10)
			if out, err := n.stream(webSockets, text, "exec", "-i", "web", "--", "cat"); err != nil || out != text {
				t.Errorf("of %d bytes %d were returned: %v %s", len(text), len(out), err, stderr(err))
			}
			file := filepath.Join(t.TempDir(), "file")
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := n.stream(webSockets, "", "cp", file, "web:/tmp/copied"); err != nil {
				t.Errorf("cp: %v: %s%s", err, out, stderr(err))
			}
			if size, err := n.stream(webSockets, "", "exec", "web", "--", "wc", "-c", "/tmp/copied"); err != nil || !strings.HasPrefix(size, fmt.Sprint(len(text))) {
				t.Errorf("cp: %v: %s%s", err, size, stderr(err))
			}
			n.checkPortForward(t, webSockets)
		})
	}
	n.checkFollow(t)
}

// checkFollow follows the log of the pod web until the pod is deleted.
func (n tenant) checkFollow(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), user.Timeout)
	defer cancel()
	var follow *exec.Cmd
	var line string
	err := retry(func() (err error) {
		follow, line, err = n.follow(ctx)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if line != "started\n" {
		t.Errorf("logs -f: %q", line)
	}
	n.DeletePod("web")
	if err := follow.Wait(); err != nil {
		t.Errorf("logs -f does not end with its pod: %v", err)
	}
}

// follow starts kubectl logs -f and returns its first line.
func (n tenant) follow(ctx context.Context) (command *exec.Cmd, line string, err error) {
	command = n.kubectl(ctx, true, "logs", "-f", "--tail=1", "web")
	pipe, err := command.StdoutPipe()
	if err != nil {
		return nil, "", err
	}
	if err := command.Start(); err != nil {
		return nil, "", err
	}
	if line, err = bufio.NewReader(pipe).ReadString('\n'); err != nil {
		_ = command.Process.Kill()
		_ = command.Wait()
		return nil, "", fmt.Errorf("logs -f: %w: %q", err, line)
	}
	return command, line, nil
}

func (n tenant) checkPortForward(t *testing.T, webSockets bool) {
	t.Helper()
	var text string
	err := retry(func() (err error) {
		text, err = n.getThroughPortForward(t.Context(), webSockets)
		return err
	})
	if err != nil || text != "hello\n" {
		t.Errorf("port-forward: %v: %q", err, text)
	}
}

// retry tries up to three times because a busy machine may break a connection.
func retry(try func() error) (err error) {
	for range 3 {
		if err = try(); err == nil {
			return nil
		}
	}
	return err
}

// getThroughPortForward requests the page of the pod web through a forwarded port.
func (n tenant) getThroughPortForward(ctx context.Context, webSockets bool) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, streamLimit)
	defer cancel()
	forward := n.kubectl(ctx, webSockets, "port-forward", "--address", "127.0.0.1", "pod/web", ":8080")
	out, err := forward.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := forward.Start(); err != nil {
		return "", err
	}
	defer func() {
		_ = forward.Process.Kill()
		_ = forward.Wait()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("port-forward: %w: %q", err, line)
	}
	_, rest, _ := strings.Cut(line, "127.0.0.1:")
	port, _, _ := strings.Cut(rest, " ")
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+port+"/index.html", nil)
	if err != nil {
		return "", err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return string(text), err
}

// metricsKind replaces the metrics-server, which the lab does not have.
const metricsKind = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: pods.metrics.k8s.io
  annotations: {api-approved.kubernetes.io: "unapproved, for tests"}
spec:
  group: metrics.k8s.io
  scope: Namespaced
  names: {kind: PodMetrics, plural: pods}
  versions:
    - name: v1beta1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

// runningPod is a pod web with metrics for its remote pod.
type runningPod struct {
	tenant
	node string
}

// newRunningPod offloads a new namespace to the clusters of a region and starts a pod on the node.
func newRunningPod(t *testing.T, home, cluster *clusters.Cluster, region, node string) runningPod {
	t.Helper()
	n := runningPod{tenant{user.NewNamespace(t, home), t}, node}
	n.offload("--selector", "region="+region)
	edits := []func(*corev1.Pod){stateless, user.OnNode(node), func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Command = []string{"sh", "-c", "echo from " + region + "; sleep 2147483647"}
	}}
	n.Eventually("the policies to match the namespace", func(context.Context) (string, error) {
		if _, err := n.create(user.NewPod("web", "", edits...)); err != nil {
			return err.Error(), nil
		}
		return "", nil
	})
	n.Pod("web", "", edits...)
	n.WaitReady("web")
	created, _, _ := unstructured.NestedString(n.offloading().Object, "status", "remoteNamespaceName")
	remote := user.ExistingNamespace(t, cluster, created)
	pod, err := remote.Client.CoreV1().Pods(created).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	remote.Apply(metricsKind)
	t.Cleanup(func() {
		command := exec.CommandContext(user.CleanupContext(t), cluster.Kubectl(), "--kubeconfig", cluster.Kubeconfig(), "delete", "crd", "pods.metrics.k8s.io", "--ignore-not-found")
		if out, err := command.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	said := fmt.Sprintf(`
apiVersion: metrics.k8s.io/v1beta1
kind: PodMetrics
metadata: {name: web, labels: {fabric.storage.liqo.io/home: %q}}
timestamp: %q
window: 15s
containers: [{name: main, usage: {cpu: 100m, memory: 16Mi}}]
`, pod.Labels["fabric.storage.liqo.io/home"], time.Now().UTC().Format(time.RFC3339))
	remote.Eventually("the metrics of the pod to be written", func(context.Context) (string, error) {
		if err := remote.TryApply(said); err != nil {
			return err.Error(), nil
		}
		return "", nil
	})
	return n
}

// get sends a request to the node's kubelet API through the API server.
func (r runningPod) get(ctx context.Context, path string) (code int, text string) {
	config, err := r.Cluster.Config()
	if err != nil {
		return 0, err.Error()
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return 0, err.Error()
	}
	url := fmt.Sprintf("%s/api/v1/nodes/%s/proxy/%s", config.Host, r.node, path)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err.Error()
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, string(body)
}

// Two virtual nodes have different ports, and each has its own pods only. The second remote cluster is the home cluster
// itself. The test is exclusive because other namespaces would be offloaded to both.
func TestEachVirtualNodeServesOnlyItsOwnPods(t *testing.T) {
	prepare(t)
	const second, secondNode = "offloaded-home", "virtual-home"
	home, remote := user.Cluster(t, "home"), user.Cluster(t, "remote")
	access, kubeconfig, err := driver.GrantAccess(t.Context(), home, home, nil)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*user.Timeout)
		defer cancel()
		err := driver.Undeclare(ctx, home, second)
		if access != nil {
			err = errors.Join(err, access.Revoke(ctx))
		}
		if err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	fabric := map[string]any{"nodeName": secondNode, "labels": map[string]any{"region": "home"}}
	if err := driver.Declare(t.Context(), home, second, kubeconfig, fabric); err != nil {
		t.Fatal(err)
	}
	both := []runningPod{newRunningPod(t, home, remote, "europe", node), newRunningPod(t, home, home, "home", secondNode)}
	ports := map[int32]string{}
	for _, one := range both {
		found, err := one.Client.CoreV1().Nodes().Get(t.Context(), one.node, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		port := found.Status.DaemonEndpoints.KubeletEndpoint.Port
		if other, isTaken := ports[port]; isTaken || port == 0 {
			t.Errorf("%s and %q have the same port %d", one.node, other, port)
		}
		ports[port] = one.node
	}
	for at, one := range both {
		other := both[1-at]
		one.Eventually("the log to be readable", func(ctx context.Context) (string, error) {
			if code, text := one.get(ctx, "containerLogs/"+one.Name+"/web/main"); code != http.StatusOK || !strings.HasPrefix(text, "from ") {
				return fmt.Sprintf("%d: %s", code, text), nil
			}
			return "", nil
		})
		code, text := one.get(t.Context(), "containerLogs/"+other.Name+"/web/main")
		if code == http.StatusOK {
			user.Violated(t, "%s has the log of a pod of %s: %s", one.node, other.node, text)
		} else if code != http.StatusBadRequest || !strings.Contains(text, "on the node "+one.node) {
			t.Errorf("for a pod of %s, %s returns %d: %s", other.node, one.node, code, text)
		}
		one.Eventually("the node to return metrics of its pod, and of no others", func(ctx context.Context) (string, error) {
			code, text := one.get(ctx, "metrics/resource")
			if code != http.StatusOK || !strings.Contains(text, fmt.Sprintf("namespace=%q", one.Name)) || !strings.Contains(text, "\nnode_memory_working_set_bytes ") {
				return fmt.Sprintf("%d: %s", code, text), nil
			}
			if strings.Contains(text, fmt.Sprintf("namespace=%q", other.Name)) {
				user.Violated(t, "%s returns metrics of a pod of %s: %s", one.node, other.node, text)
			}
			return "", nil
		})
	}
	both[0].unoffload()
	both[1].checkReachableWhileDeleted(second)
	both[1].unoffload()
}

// checkReachableWhileDeleted deletes the RemoteCluster while a PodDisruptionBudget keeps the pod, and then restarts the
// fabric: the node must be reachable at the next leader, with the same port.
func (r runningPod) checkReachableWhileDeleted(cluster string) {
	t := r.t
	t.Helper()
	budgets := r.Client.PolicyV1().PodDisruptionBudgets(r.Name)
	one := intstr.FromInt32(1)
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "keep"}, Spec: policyv1.PodDisruptionBudgetSpec{
		MinAvailable: &one, Selector: &metav1.LabelSelector{},
	}}
	if _, err := budgets.Create(t.Context(), budget, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := budgets.Delete(user.CleanupContext(t), budget.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}()
	r.Eventually("the PodDisruptionBudget to count its pods", func(ctx context.Context) (string, error) {
		found, err := budgets.Get(ctx, budget.Name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if found.Status.ObservedGeneration == 0 || found.Status.CurrentHealthy != 1 {
			return fmt.Sprintf("it counts %+v", found.Status), nil
		}
		return "", nil
	})
	all, err := dynamicClient(r.Cluster)
	if err != nil {
		t.Fatal(err)
	}
	if err := all.Resource(clustersOf).Delete(t.Context(), cluster, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	endpoint := func(ctx context.Context) (*corev1.Node, error) {
		return r.Client.CoreV1().Nodes().Get(ctx, r.node, metav1.GetOptions{})
	}
	r.Eventually("the node to be cordoned", func(ctx context.Context) (string, error) {
		found, err := endpoint(ctx)
		if err != nil {
			return "", err
		}
		if !found.Spec.Unschedulable {
			return "it is not", nil
		}
		return "", nil
	})
	before, err := endpoint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r.killFabric()
	r.Eventually("the log to be readable at the next leader", func(ctx context.Context) (string, error) {
		now, err := endpoint(ctx)
		if err != nil {
			return "", err
		}
		if was := before.Status.Addresses; reflect.DeepEqual(now.Status.Addresses, was) {
			return fmt.Sprintf("the node still has the addresses %v", was), nil
		}
		if now, was := now.Status.DaemonEndpoints, before.Status.DaemonEndpoints; now != was {
			return fmt.Sprintf("it has the port %v, and had %v", now, was), nil
		}
		if code, text := r.get(ctx, "containerLogs/"+r.Name+"/web/main"); code != http.StatusOK || !strings.HasPrefix(text, "from ") {
			return fmt.Sprintf("%d: %s", code, text), nil
		}
		return "", nil
	})
}
