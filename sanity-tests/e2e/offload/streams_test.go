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
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// kubectl runs kubectl at home as the pod's user does; each protocol in turn, where there are two.
func (n tenant) kubectl(webSockets bool, args ...string) *exec.Cmd {
	args = append([]string{"--kubeconfig", n.Cluster.Kubeconfig(), "--namespace", n.Name}, args...)
	command := exec.CommandContext(n.t.Context(), n.Cluster.Kubectl(), args...)
	flag := fmt.Sprint(webSockets)
	command.Env = append(os.Environ(), "KUBECTL_REMOTE_COMMAND_WEBSOCKETS="+flag, "KUBECTL_PORT_FORWARD_WEBSOCKETS="+flag)
	return command
}

// What kubectl does with a pod works with one that runs in the other cluster.
func TestUsersReachTheirPods(t *testing.T) {
	n, _ := offloadedTenant(t)
	n.Pod("web", "", bare, func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Command = []string{"sh", "-c",
			"echo started; mkdir /www && echo hello > /www/index.html && exec httpd -f -p 8080 -h /www"}
	})
	n.WaitReady("web")
	n.Eventually("the log to be readable", func(context.Context) (string, error) {
		out, err := n.kubectl(true, "logs", "web").CombinedOutput()
		if err != nil || string(out) != "started\n" {
			return fmt.Sprintf("%v: %s", err, out), nil
		}
		return "", nil
	})
	for _, webSockets := range []bool{true, false} {
		t.Run(fmt.Sprintf("web sockets %t", webSockets), func(t *testing.T) {
			exit := n.kubectl(webSockets, "exec", "web", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
			out, err := exit.Output()
			var failed *exec.ExitError
			if !errors.As(err, &failed) || failed.ExitCode() != 7 || string(out) != "out\n" || !strings.Contains(string(failed.Stderr), "err\n") {
				t.Errorf("exec: %v: %q", err, out)
			}
			text := strings.Repeat("0123456789abcdef", 64<<10)
			through := n.kubectl(webSockets, "exec", "-i", "web", "--", "cat")
			through.Stdin = strings.NewReader(text)
			if out, err := through.Output(); err != nil || string(out) != text {
				t.Errorf("of %d bytes %d came back: %v", len(text), len(out), err)
			}
			file := filepath.Join(t.TempDir(), "file")
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := n.kubectl(webSockets, "cp", file, "web:/tmp/copied").CombinedOutput(); err != nil {
				t.Errorf("cp: %v: %s", err, out)
			}
			if size, err := n.kubectl(webSockets, "exec", "web", "--", "wc", "-c", "/tmp/copied").Output(); err != nil || !strings.HasPrefix(string(size), fmt.Sprint(len(text))) {
				t.Errorf("cp: %v: %s", err, size)
			}
			n.forwards(t, webSockets)
		})
	}
	follow := n.kubectl(true, "logs", "-f", "--tail=1", "web")
	pipe, err := follow.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(pipe).ReadString('\n'); err != nil || line != "started\n" {
		t.Errorf("logs -f: %v: %q", err, line)
	}
	n.DeletePod("web")
	if err := follow.Wait(); err != nil {
		t.Errorf("logs -f does not end with its pod: %v", err)
	}
}

func (n tenant) forwards(t *testing.T, webSockets bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	forward := n.kubectl(webSockets, "port-forward", "--address", "127.0.0.1", "pod/web", ":8080")
	out, err := forward.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := forward.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = forward.Process.Kill()
		_ = forward.Wait()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("port-forward: %v: %q", err, line)
	}
	_, rest, _ := strings.Cut(line, "127.0.0.1:")
	port, _, _ := strings.Cut(rest, " ")
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+port+"/index.html", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Errorf("port-forward: %v", err)
		return
	}
	defer answer.Body.Close()
	if text, err := io.ReadAll(answer.Body); err != nil || string(text) != "hello\n" {
		t.Errorf("port-forward: %v: %q", err, text)
	}
}
