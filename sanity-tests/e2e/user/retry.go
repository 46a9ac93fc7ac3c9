package user

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"

	"storage.liqo.io/sanity-tests/clusters"
)

// connectTimeout is how long connections to an API server, or a kubelet, are retried. The request has not
// been sent, so nothing is done twice.
const connectTimeout = 30 * time.Second

// notReached are errors of kubectl when it cannot connect to the API server.
var notReached = []string{
	"was refused - did you specify the right host or port?",
	"Unable to connect to the server: dial ",
	"Unable to connect to the server: net/http: TLS handshake timeout",
}

// notStarted are errors of kubectl when the command or stream was not started in the pod.
var notStarted = append([]string{
	"error dialing backend",
	"unable to upgrade connection",
	"error upgrading connection",
}, notReached...)

// NotStarted reports whether kubectl could not start a command or stream in a pod.
func NotStarted(output string) bool { return containsAny(output, notStarted) }

func containsAny(text string, phrases []string) bool {
	return slices.ContainsFunc(phrases, func(phrase string) bool { return strings.Contains(text, phrase) })
}

// kubectlIn runs kubectl in the namespace, and retries after one of these errors.
func (n *Namespace) kubectlIn(ctx context.Context, input string, retryOn []string, args ...string) (string, error) {
	args = append([]string{"--kubeconfig", n.Cluster.Kubeconfig(), "--namespace", n.Name}, args...)
	for began := time.Now(); ; {
		command := exec.CommandContext(ctx, n.kubectl, args...)
		// Children of kubectl may keep its output open.
		command.WaitDelay = 5 * time.Second
		if input != "" {
			command.Stdin = strings.NewReader(input)
		}
		out, err := command.CombinedOutput()
		if err == nil {
			return string(out), nil
		}
		if containsAny(string(out), retryOn) && time.Since(began) < connectTimeout && pause(ctx) {
			continue
		}
		return string(out), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args[4:], " "), err, bytes.TrimSpace(out))
	}
}

// pause waits before another attempt, and reports whether there is time for one.
func pause(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(250 * time.Millisecond):
		return true
	}
}

// client returns a client that retries connections to the API server.
func client(cluster *clusters.Cluster) (kubernetes.Interface, error) {
	config, err := cluster.Config()
	if err != nil {
		return nil, err
	}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return retryingTransport{next} })
	return kubernetes.NewForConfig(config)
}

// retryingTransport retries a request if the connection failed.
type retryingTransport struct{ next http.RoundTripper }

func (r retryingTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	for began := time.Now(); ; {
		response, err := r.next.RoundTrip(request)
		if err == nil || !notConnected(err) || time.Since(began) > connectTimeout || !pause(request.Context()) {
			return response, err
		}
		// The transport has closed the body without sending it.
		if request.Body != nil && request.Body != http.NoBody {
			if request.GetBody == nil {
				return nil, err
			}
			var body io.ReadCloser
			if body, err = request.GetBody(); err != nil {
				return nil, err
			}
			request = request.Clone(request.Context())
			request.Body = body
		}
	}
}

func notConnected(err error) bool {
	var failed *net.OpError
	return errors.As(err, &failed) && failed.Op == "dial" || strings.Contains(err.Error(), "TLS handshake timeout")
}
