package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"storage.liqo.io/sanity-tests/bench"
	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/images"
	"storage.liqo.io/sanity-tests/machine"
)

const (
	// streamed is how many bytes each stream carries.
	streamed = 64 << 20
	// streamHeats is how often each stream is measured on each side; the middle one counts.
	streamHeats = 5
	streamPod   = "stream"
)

// serving writes a file of so many bytes, and serves it.
var serving = fmt.Sprintf("mkdir /www && head -c %d /dev/zero > /www/file && exec httpd -f -p 8080 -h /www", streamed)

// end is a pod, and how kubectl reaches it.
type end struct {
	cluster   *clusters.Cluster
	client    kubernetes.Interface
	namespace string
}

// carry is one stream to or from a pod. It answers in how much time the bytes were carried.
type carry func(ctx context.Context, to end) (time.Duration, error)

// streams races what kubectl carries to and from a pod of the fabric against the same of a pod
// that was made there, in turn. Both run on a node that nobody plays.
func (t *track) streams(ctx context.Context) ([]bench.StreamRow, error) {
	direct, ours := end{t.remote, t.there, t.direct()}, end{t.home, t.here, t.namespace}
	// Until now its pods were kept to the nodes that are played.
	anywhere := `{"spec": {"fabric": {"pods": null}}}`
	if out, err := ours.kubectl(ctx, "patch", "remotecluster", cluster, "--type=merge", "-p", anywhere).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	if err := errors.Join(direct.serve(ctx, ""), ours.serve(ctx, node)); err != nil {
		return nil, err
	}
	var rows []bench.StreamRow
	for _, stream := range []struct {
		what  string
		carry carry
	}{{"exec, from the pod", download}, {"exec, to the pod", upload}, {"port-forward, from the pod", forward}} {
		row := bench.StreamRow{What: stream.what, Bytes: streamed}
		for range streamHeats {
			alone, err := stream.carry(ctx, direct)
			if err != nil {
				return nil, fmt.Errorf("%s that was made there: %w", stream.what, err)
			}
			through, err := stream.carry(ctx, ours)
			if err != nil {
				return nil, fmt.Errorf("%s of the fabric: %w", stream.what, err)
			}
			row.Direct, row.Ours = append(row.Direct, alone), append(row.Ours, through)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// serve makes the pod, and waits until it serves.
func (e end) serve(ctx context.Context, node string) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: streamPod},
		Spec: corev1.PodSpec{
			NodeName:                      node,
			TerminationGracePeriodSeconds: new(int64(1)),
			Tolerations:                   []corev1.Toleration{{Key: "virtual-node.liqo.io/not-allowed", Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{
				Name: "main", Image: images.BusyboxName, Command: []string{"sh", "-c", serving},
				ReadinessProbe: &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{
					Exec: &corev1.ExecAction{Command: []string{"wget", "-q", "-O", "/dev/null", "--spider", "http://127.0.0.1:8080/file"}},
				}},
			}},
		},
	}
	pods := e.client.CoreV1().Pods(e.namespace)
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return err
	}
	return machine.Until(ctx, "pod "+streamPod+" in "+e.namespace+" to be ready", func() error {
		found, err := pods.Get(ctx, streamPod, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range found.Status.Conditions {
			if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("it is %s: %v", found.Status.Phase, found.Status.Conditions)
	})
}

func (e end) kubectl(ctx context.Context, args ...string) *exec.Cmd {
	args = append([]string{"--kubeconfig", e.cluster.Kubeconfig(), "--namespace", e.namespace}, args...)
	return exec.CommandContext(ctx, e.cluster.Kubectl(), args...)
}

func download(ctx context.Context, from end) (time.Duration, error) {
	command := from.kubectl(ctx, "exec", streamPod, "--", "cat", "/www/file")
	out := &count{}
	command.Stdout = out
	begin := time.Now()
	if err := command.Run(); err != nil {
		return 0, err
	}
	return time.Since(begin), out.complete()
}

func upload(ctx context.Context, to end) (time.Duration, error) {
	command := to.kubectl(ctx, "exec", "-i", streamPod, "--", "wc", "-c")
	command.Stdin = io.LimitReader(zeros{}, streamed)
	begin := time.Now()
	out, err := command.Output()
	if err != nil {
		return 0, err
	}
	if got := strings.TrimSpace(string(out)); got != fmt.Sprint(streamed) {
		return 0, fmt.Errorf("of %d bytes %s have arrived", streamed, got)
	}
	return time.Since(begin), nil
}

func forward(ctx context.Context, from end) (took time.Duration, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	command := from.kubectl(ctx, "port-forward", "--address", "127.0.0.1", "pod/"+streamPod, ":8080")
	pipe, err := command.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := command.Start(); err != nil {
		return 0, err
	}
	defer func() {
		cancel()
		_ = command.Wait() // it was killed
	}()
	line, err := bufio.NewReader(pipe).ReadString('\n')
	if err != nil {
		return 0, fmt.Errorf("port-forward: %w: %q", err, line)
	}
	_, rest, _ := strings.Cut(line, "127.0.0.1:")
	port, _, _ := strings.Cut(rest, " ")
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+port+"/file", nil)
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, answer.Body.Close()) }()
	out := &count{}
	if _, err := io.Copy(out, answer.Body); err != nil {
		return 0, err
	}
	return time.Since(begin), out.complete()
}

// zeros never ends.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// count counts what it is given.
type count struct{ bytes int64 }

func (c *count) Write(p []byte) (int, error) {
	c.bytes += int64(len(p))
	return len(p), nil
}

func (c *count) complete() error {
	if c.bytes != streamed {
		return fmt.Errorf("of %d bytes %d have arrived", streamed, c.bytes)
	}
	return nil
}
