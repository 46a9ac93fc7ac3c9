package faults

import (
	"context"
	"fmt"
	"os/exec"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"

	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
)

// The token of a connected cluster is due for renewal, and the controller crashes around the
// request for the next token and around the write that stores it.
func (w *walk) sessionRenewed(t *testing.T, b *remoteSetup) {
	b.connect(t)
	b.waitReady()
	var expires time.Time
	// One after the other, because the driver checks tokens once a minute.
	for _, step := range []string{"token-renew", "token-write"} {
		controller := w.crashController(t, b.home, bothSides(step))
		expires = b.ageToken()
		w.waitCrashed(t, b.home, controller)
	}
	b.waitReady()
	b.home.Eventually("the cluster is reached with a renewed token", func(ctx context.Context) (string, error) {
		cluster, err := b.home.Object(ctx, "remotecluster", b.id)
		if err != nil {
			return "", err
		}
		said := user.Text(cluster, "status", "credentials", "expires")
		if now, err := time.Parse(time.RFC3339, said); err != nil || !now.After(expires) {
			return fmt.Sprintf("it expires at %q, and the first one at %s", said, expires), nil
		}
		return "", nil
	})
	b.disconnect(t)
	b.waitMarked(false)
}

// connect declares the cluster with the command for users, which gives the driver a token that can be renewed.
func (b *remoteSetup) connect(t *testing.T) {
	t.Helper()
	config, err := clientcmd.LoadFromFile(b.remote.Cluster.ProxyKubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	server := config.Clusters[config.Contexts[config.CurrentContext].Cluster].Server
	t.Cleanup(func() {
		if t.Failed() {
			b.disconnect(t)
		}
	})
	b.program(t, "connect", "--level", "full", "--server", server, "--node-selector", corev1.LabelHostname+"="+b.id)
}

func (b *remoteSetup) disconnect(t *testing.T) {
	t.Helper()
	b.program(t, "disconnect")
}

func (b *remoteSetup) program(t *testing.T, command string, args ...string) {
	t.Helper()
	// Not the test's context, which is cancelled before clean-up.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), user.Timeout)
	defer cancel()
	program, err := driver.Compile(ctx)
	if err != nil {
		t.Fatal(err)
	}
	args = append([]string{command, b.id, "--kubeconfig", b.home.Cluster.Kubeconfig(),
		"--remote-kubeconfig", b.remote.Cluster.Kubeconfig(), "--remote-namespace", b.remote.Name + "-access"}, args...)
	if out, err := exec.CommandContext(ctx, program, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
}

// ageToken changes the dates of the driver's token so that half of its lifetime is left, and returns when it expires.
func (b *remoteSetup) ageToken() (expires time.Time) {
	const half = 12 * time.Hour
	expires = time.Now().Add(half).Truncate(time.Second)
	b.home.RedateToken("remote-"+b.id, b.remote.Cluster, expires.Add(-2*half), expires)
	return expires
}
