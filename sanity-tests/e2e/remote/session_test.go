package remote

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/faults"
)

// This file ends tokens of clusters that the command has connected: by revoking them, and by a link that is cut.

// kubeconfigSecret is the Secret at home that the command wrote.
func (c *connection) kubeconfigSecret() *corev1.Secret {
	c.t.Helper()
	secret, err := c.home.Client.CoreV1().Secrets(chart.Namespace).Get(c.t.Context(), "remote-"+c.cluster, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return secret
}

// token is that of the kubeconfig.
func (c *connection) token() string {
	c.t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig(c.kubeconfigSecret().Data["kubeconfig"])
	if err != nil {
		c.t.Fatal(err)
	}
	return config.BearerToken
}

// as is a client of the remote cluster with this token. The kubeconfig has the address for pods; this one has that
// for tests.
func (c *connection) as(token string) kubernetes.Interface {
	config := rest.CopyConfig(c.anonymous)
	config.BearerToken = token
	return kubernetes.NewForConfigOrDie(config)
}

// tokenFor is a request for a token that is valid for so long, bound to this Secret unless it is empty.
func tokenFor(bound string, seconds int64) *authenticationv1.TokenRequest {
	spec := authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}
	if bound != "" {
		spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: bound}
	}
	return &authenticationv1.TokenRequest{Spec: spec}
}

// thief renews a stolen token over and over.
type thief struct {
	tokens []string
	// refused is when a token was refused first.
	refused time.Time
	err     error
}

// steal begins with the token of the driver, and goes on until it is stopped.
func (c *connection) steal() (stop func() thief) {
	c.t.Helper()
	held := thief{tokens: []string{c.token()}}
	client := c.as(held.tokens[0])
	if _, err := client.CoreV1().PersistentVolumeClaims(c.remote.Name).List(c.t.Context(), metav1.ListOptions{}); err != nil {
		c.t.Fatalf("the kubeconfig does not work before it is revoked: %v", err)
	}
	ctx, cancel := context.WithCancel(c.t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			given, err := client.CoreV1().ServiceAccounts(c.access).CreateToken(ctx, "liqo-csi-remote",
				tokenFor("liqo-csi-session", 3600), metav1.CreateOptions{})
			switch {
			case err == nil:
				held.tokens = append(held.tokens, given.Status.Token)
				client = c.as(given.Status.Token)
			case apierrors.IsUnauthorized(err) && held.refused.IsZero():
				held.refused = time.Now()
			case ctx.Err() == nil && !apierrors.IsUnauthorized(err):
				held.err = err // while the Secret is not there, it is NotFound
			}
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	})
	return func() thief {
		cancel()
		running.Wait()
		return held
	}
}

// The API server remembers for some seconds that a token was valid: the thief must not use them to get a token
// of the next session.
func TestSessionOfAStolenKubeconfigIsEndedByOneCommand(t *testing.T) {
	c := newConnection(t)
	c.connect(nil, "--level", "full")
	start(t, virtualNode(c.node, c.cluster))
	if err := awaitMarked(t.Context(), user.Cluster(t, "home"), c.node, c.cluster); err != nil {
		t.Fatal(err)
	}
	found := c.written()
	stop := c.steal()
	c.remote.Eventually("a token is renewed with the stolen one", func(ctx context.Context) (string, error) {
		_, err := c.as(c.token()).CoreV1().ServiceAccounts(c.access).CreateToken(ctx, "liqo-csi-remote",
			tokenFor("liqo-csi-session", 3600), metav1.CreateOptions{})
		return "", err
	})

	began := time.Now()
	c.connect([]string{"revoked"}, "--revoke-tokens")
	took := time.Since(began)
	held := stop()
	for i, token := range held.tokens {
		_, err := c.as(token).CoreV1().PersistentVolumeClaims(c.remote.Name).List(t.Context(), metav1.ListOptions{})
		if !apierrors.IsUnauthorized(err) {
			user.ViolatedNow(t, "token %d of %d that came of the stolen one is still valid: %v", i+1, len(held.tokens), err)
		}
	}
	if held.refused.IsZero() || len(held.tokens) < 2 {
		t.Fatalf("the thief had %d tokens, and was not refused: %v", len(held.tokens), held.err)
	}
	t.Logf("the stolen kubeconfig and %d tokens that came of it were worthless after %.1fs, the driver had another one after %.1fs",
		len(held.tokens)-1, held.refused.Sub(began).Seconds(), took.Seconds())

	c.waitCondition("data", "True", "TwinBound")
	c.wantPrecious()
	later := c.used("later", "true")
	for claim, v := range map[string]volume{"data": found, "later": later} {
		c.deleteClaim(claim)
		c.wantGone(v)
	}
	c.disconnect(0)
	c.wantNothingLeft()
}

// While the link is cut, the token expires. What runs there goes on; when the link is back, the driver says which
// command repairs it, and it does.
func TestSessionAfterAPartitionThatIsLongerThanATokenLives(t *testing.T) {
	kubeconfig, link := proxied(t)
	through, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	c := newConnection(t)
	c.server = through.Host
	c.connect(nil, "--level", "full")
	start(t, virtualNode(c.node, c.cluster))
	if err := awaitMarked(t.Context(), user.Cluster(t, "home"), c.node, c.cluster); err != nil {
		t.Fatal(err)
	}
	c.home.Claim("data", "liqo-reference", "64Mi")
	c.home.Pod("writer", "data", c.there)
	c.home.WaitReady("writer")
	c.remote.Exec("writer", "echo precious > /data/file && sync")
	pod := c.remote.WaitReady("writer")
	found := c.follow("data")

	expires := c.shorten(45 * time.Second)
	c.waitStatus("it uses the token that expires soon", func(s status) bool {
		return is(s, "Ready", metav1.ConditionTrue, "Usable") && s.Credentials.Expires == expires.UTC().Format(time.RFC3339)
	})
	token := c.token()
	link(faults.Setting{Mode: faults.Hang})
	cut := time.Now()
	c.waitCondition("data", corev1.ConditionUnknown, "ClusterUnreachable")
	c.remote.Eventually("the token expires", func(ctx context.Context) (string, error) {
		_, err := c.as(token).CoreV1().PersistentVolumeClaims(c.remote.Name).List(ctx, metav1.ListOptions{})
		if apierrors.IsUnauthorized(err) {
			return "", nil
		}
		return fmt.Sprintf("it is answered %v", err), nil
	})
	c.remote.Exec("writer", "echo meanwhile >> /data/file && sync")
	link(faults.Setting{Mode: faults.Pass})
	back := time.Now()
	wayOut := "liqo-csi connect " + c.cluster
	c.waitStatus("it says what to do", func(s status) bool {
		return is(s, "Ready", metav1.ConditionFalse, "Unauthorized") && strings.Contains(s.LastError, "expired at") &&
			strings.Contains(s.LastError, wayOut)
	})
	c.home.Eventually("doctor says what to do", func(ctx context.Context) (string, error) {
		found, err := c.doctorOn(ctx, "RemoteCluster "+c.cluster)
		if strings.Contains(found, "expired at") && strings.Contains(found, wayOut) {
			return "", nil
		}
		return fmt.Sprintf("it says %q", found), err
	})
	said := time.Now()

	c.connect(nil)
	c.waitCondition("data", corev1.ConditionTrue, "TwinBound")
	t.Logf("the link was cut for %.1fs; %.1fs after that the driver said what to do, and the command repaired it in %.1fs",
		back.Sub(cut).Seconds(), said.Sub(back).Seconds(), time.Since(said).Seconds())
	if now := c.remote.WaitReady("writer"); now.UID != pod.UID || now.Status.ContainerStatuses[0].RestartCount != 0 {
		user.Violated(t, "the pod there did not go on: it is %s now, with %d restarts", now.UID, now.Status.ContainerStatuses[0].RestartCount)
	}
	if got := c.remote.Exec("writer", "cat /data/file"); got != "precious\nmeanwhile" {
		user.Violated(t, "the pod reads %q", got)
	}
	later := c.used("later", "true")
	c.home.DeletePod("writer")
	for claim, v := range map[string]volume{"data": found, "later": later} {
		c.deleteClaim(claim)
		c.wantGone(v)
	}
	c.disconnect(0)
	c.wantNothingLeft()
}

// shorten gives the driver the same token with this end. The API server accepts it for a minute longer. It is issued just
// before it ends, so that it is not due to be renewed any earlier.
func (c *connection) shorten(life time.Duration) (expires time.Time) {
	c.t.Helper()
	secret := c.kubeconfigSecret()
	config, err := clientcmd.Load(secret.Data["kubeconfig"])
	if err != nil {
		c.t.Fatal(err)
	}
	expires = time.Now().Add(life).Truncate(time.Second)
	for _, user := range config.AuthInfos {
		if user.Token, err = c.remote.Cluster.Redated(user.Token, expires.Add(-time.Second), expires); err != nil {
			c.t.Fatal(err)
		}
	}
	if secret.Data["kubeconfig"], err = clientcmd.Write(*config); err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.home.Client.CoreV1().Secrets(chart.Namespace).Update(c.t.Context(), secret, metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	return expires
}
