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

// reachPatience is for how long an API server, or a kubelet, is asked again that cannot be connected to:
// it may be starting, or have no time just now. What it was asked has not begun, so nothing is done twice.
const reachPatience = 30 * time.Second

// notReached are what kubectl says if the API server was not connected to.
var notReached = []string{
	"was refused - did you specify the right host or port?",
	"Unable to connect to the server: dial ",
	"Unable to connect to the server: net/http: TLS handshake timeout",
}

// notStarted are what kubectl says if the command or the stream was not begun in the pod.
var notStarted = append([]string{
	"error dialing backend",
	"unable to upgrade connection",
	"error upgrading connection",
}, notReached...)

// NotStarted is whether kubectl complains that it could not begin a command or a stream in a pod.
func NotStarted(complaint string) bool { return containsAny(complaint, notStarted) }

func containsAny(text string, phrases []string) bool {
	return slices.ContainsFunc(phrases, func(phrase string) bool { return strings.Contains(text, phrase) })
}

// kubectlIn runs kubectl in the namespace, again if it complains with one of these phrases.
func (n *Namespace) kubectlIn(ctx context.Context, input string, again []string, args ...string) (string, error) {
	args = append([]string{"--kubeconfig", n.Cluster.Kubeconfig(), "--namespace", n.Name}, args...)
	for began := time.Now(); ; {
		command := exec.CommandContext(ctx, n.kubectl, args...)
		// Children of kubectl that keep its output open do not keep the test.
		command.WaitDelay = 5 * time.Second
		if input != "" {
			command.Stdin = strings.NewReader(input)
		}
		out, err := command.CombinedOutput()
		if err == nil {
			return string(out), nil
		}
		if containsAny(string(out), again) && time.Since(began) < reachPatience && pause(ctx) {
			continue
		}
		return string(out), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args[4:], " "), err, bytes.TrimSpace(out))
	}
}

// pause is whether there is time for another attempt.
func pause(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(250 * time.Millisecond):
		return true
	}
}

// client is a client of the cluster that asks again if its API server cannot be connected to.
func client(cluster *clusters.Cluster) (kubernetes.Interface, error) {
	config, err := cluster.Config()
	if err != nil {
		return nil, err
	}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return reaching{next} })
	return kubernetes.NewForConfig(config)
}

// reaching sends a request again if no connection for it came about.
type reaching struct{ next http.RoundTripper }

func (r reaching) RoundTrip(request *http.Request) (*http.Response, error) {
	for began := time.Now(); ; {
		response, err := r.next.RoundTrip(request)
		if err == nil || !notConnected(err) || time.Since(began) > reachPatience || !pause(request.Context()) {
			return response, err
		}
		// The transport has closed the body, which it has not sent.
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
