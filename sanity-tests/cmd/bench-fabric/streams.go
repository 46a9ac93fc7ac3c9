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
	// streamed is how many bytes each stream transfers.
	streamed = 64 << 20
	// streamRuns is how often each stream is measured for each pod; the median counts.
	streamRuns = 5
	streamPod  = "stream"
)

// serveFile is a command that serves a file of that size.
var serveFile = fmt.Sprintf("mkdir /www && head -c %d /dev/zero > /www/file && exec httpd -f -p 8080 -h /www", streamed)

// endpoint is where a stream's pod is.
type endpoint struct {
	cluster   *clusters.Cluster
	client    kubernetes.Interface
	namespace string
}

// transfer is one stream to or from a pod. It returns the time that the bytes took.
type transfer func(ctx context.Context, pod endpoint) (time.Duration, error)

// streams compares kubectl's streams to and from a pod of the fabric with those of a pod created
// directly, alternately. Both run on a real node.
func (e *environment) streams(ctx context.Context) ([]bench.StreamRow, error) {
	direct, offloaded := endpoint{e.remote, e.remoteClient, e.direct()}, endpoint{e.home, e.homeClient, e.namespace}
	realNodes := `{"spec": {"fabric": {"pods": null}}}` // without nodeSelector
	if out, err := offloaded.kubectl(ctx, "patch", "remotecluster", cluster, "--type=merge", "-p", realNodes).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	if err := errors.Join(direct.serve(ctx, ""), offloaded.serve(ctx, node)); err != nil {
		return nil, err
	}
	var rows []bench.StreamRow
	for _, stream := range []struct {
		what     string
		transfer transfer
	}{{"exec, from the pod", download}, {"exec, to the pod", upload}, {"port-forward, from the pod", forward}} {
		row := bench.StreamRow{What: stream.what, Bytes: streamed}
		for range streamRuns {
			directTime, err := stream.transfer(ctx, direct)
			if err != nil {
				return nil, fmt.Errorf("%s that was created directly: %w", stream.what, err)
			}
			fabricTime, err := stream.transfer(ctx, offloaded)
			if err != nil {
				return nil, fmt.Errorf("%s of the fabric: %w", stream.what, err)
			}
			row.Direct, row.Fabric = append(row.Direct, directTime), append(row.Fabric, fabricTime)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// serve creates the pod and waits until it is ready.
func (e endpoint) serve(ctx context.Context, node string) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: streamPod},
		Spec: corev1.PodSpec{
			NodeName:                      node,
			TerminationGracePeriodSeconds: new(int64(1)),
			Tolerations:                   []corev1.Toleration{{Key: "virtual-node.liqo.io/not-allowed", Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{
				Name: "main", Image: images.BusyboxName, Command: []string{"sh", "-c", serveFile},
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
		return fmt.Errorf("phase %s: %v", found.Status.Phase, found.Status.Conditions)
	})
}

func (e endpoint) kubectl(ctx context.Context, args ...string) *exec.Cmd {
	args = append([]string{"--kubeconfig", e.cluster.Kubeconfig(), "--namespace", e.namespace}, args...)
	return exec.CommandContext(ctx, e.cluster.Kubectl(), args...)
}

func download(ctx context.Context, from endpoint) (time.Duration, error) {
	command := from.kubectl(ctx, "exec", streamPod, "--", "cat", "/www/file")
	out := &byteCounter{}
	command.Stdout = out
	begin := time.Now()
	if err := command.Run(); err != nil {
		return 0, err
	}
	return time.Since(begin), out.complete()
}

func upload(ctx context.Context, to endpoint) (time.Duration, error) {
	command := to.kubectl(ctx, "exec", "-i", streamPod, "--", "wc", "-c")
	command.Stdin = io.LimitReader(zeros{}, streamed)
	begin := time.Now()
	out, err := command.Output()
	if err != nil {
		return 0, err
	}
	if got := strings.TrimSpace(string(out)); got != fmt.Sprint(streamed) {
		return 0, fmt.Errorf("received %s of %d bytes", got, streamed)
	}
	return time.Since(begin), nil
}

func forward(ctx context.Context, from endpoint) (took time.Duration, err error) {
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
		_ = command.Wait() // reports the kill
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
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	out := &byteCounter{}
	if _, err := io.Copy(out, response.Body); err != nil {
		return 0, err
	}
	return time.Since(begin), out.complete()
}

// zeros is an endless reader.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// byteCounter is a writer that counts bytes.
type byteCounter struct{ bytes int64 }

func (c *byteCounter) Write(p []byte) (int, error) {
	c.bytes += int64(len(p))
	return len(p), nil
}

func (c *byteCounter) complete() error {
	if c.bytes != streamed {
		return fmt.Errorf("received %d of %d bytes", c.bytes, streamed)
	}
	return nil
}
