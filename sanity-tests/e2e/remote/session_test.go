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

// This file tests tokens of connected clusters that are revoked, or expire while the link is cut.

// kubeconfigSecret returns the Secret at home that connect created.
func (c *connection) kubeconfigSecret() *corev1.Secret {
	c.t.Helper()
	secret, err := c.home.Client.CoreV1().Secrets(chart.Namespace).Get(c.t.Context(), "remote-"+c.cluster, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return secret
}

// token returns the token in the kubeconfig of the driver.
func (c *connection) token() string {
	c.t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig(c.kubeconfigSecret().Data["kubeconfig"])
	if err != nil {
		c.t.Fatal(err)
	}
	return config.BearerToken
}

// clientWith returns a client of the remote cluster with this token.
func (c *connection) clientWith(token string) kubernetes.Interface {
	config := rest.CopyConfig(c.anonymous)
	config.BearerToken = token
	return kubernetes.NewForConfigOrDie(config)
}

// tokenRequest requests a token that is valid for this time, and bound to this Secret if it is not empty.
func tokenRequest(bound string, seconds int64) *authenticationv1.TokenRequest {
	spec := authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}
	if bound != "" {
		spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: bound}
	}
	return &authenticationv1.TokenRequest{Spec: spec}
}

// stolenTokens are a stolen token and those that were requested with it.
type stolenTokens struct {
	tokens []string
	// refused is the time of the first Unauthorized.
	refused time.Time
	err     error
}

// renewStolen renews the driver's token until it is stopped.
func (c *connection) renewStolen() (stop func() stolenTokens) {
	c.t.Helper()
	stolen := stolenTokens{tokens: []string{c.token()}}
	client := c.clientWith(stolen.tokens[0])
	if _, err := client.CoreV1().PersistentVolumeClaims(c.remote.Name).List(c.t.Context(), metav1.ListOptions{}); err != nil {
		c.t.Fatalf("the kubeconfig does not work before it is revoked: %v", err)
	}
	ctx, cancel := context.WithCancel(c.t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			renewed, err := client.CoreV1().ServiceAccounts(c.access).CreateToken(ctx, "liqo-csi-remote",
				tokenRequest("liqo-csi-session", 3600), metav1.CreateOptions{})
			switch {
			case err == nil:
				stolen.tokens = append(stolen.tokens, renewed.Status.Token)
				client = c.clientWith(renewed.Status.Token)
			case apierrors.IsUnauthorized(err) && stolen.refused.IsZero():
				stolen.refused = time.Now()
			case ctx.Err() == nil && !apierrors.IsUnauthorized(err):
				stolen.err = err // NotFound while the Secret does not exist
			}
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	})
	return func() stolenTokens {
		cancel()
		running.Wait()
		return stolen
	}
}

// The API server caches the authentication of tokens for some seconds. A stolen token must not be renewed meanwhile
// for the next session.
func TestSessionOfAStolenKubeconfigIsRevokedByOneCommand(t *testing.T) {
	c := newConnection(t)
	c.connect(nil, "--level", "full")
	c.startNode()
	found := c.createWithData()
	stop := c.renewStolen()
	c.remote.Eventually("a token is renewed with the stolen one", func(ctx context.Context) (string, error) {
		_, err := c.clientWith(c.token()).CoreV1().ServiceAccounts(c.access).CreateToken(ctx, "liqo-csi-remote",
			tokenRequest("liqo-csi-session", 3600), metav1.CreateOptions{})
		return "", err
	})

	began := time.Now()
	c.connect([]string{"revoked"}, "--revoke-tokens")
	took := time.Since(began)
	stolen := stop()
	for i, token := range stolen.tokens {
		_, err := c.clientWith(token).CoreV1().PersistentVolumeClaims(c.remote.Name).List(t.Context(), metav1.ListOptions{})
		if !apierrors.IsUnauthorized(err) {
			user.ViolatedNow(t, "stolen token %d of %d is still valid: %v", i+1, len(stolen.tokens), err)
		}
	}
	if stolen.refused.IsZero() || len(stolen.tokens) < 2 {
		t.Fatalf("%d stolen tokens, first refused %s: %v", len(stolen.tokens), stolen.refused, stolen.err)
	}
	t.Logf("the stolen token and %d renewed ones were invalid after %.1fs, the driver had a new one after %.1fs",
		len(stolen.tokens)-1, stolen.refused.Sub(began).Seconds(), took.Seconds())

	c.waitCondition("data", "True", "TwinBound")
	c.wantData()
	later := c.createAndRun("later", "true")
	for claim, v := range map[string]user.Volume{"data": found, "later": later} {
		c.deleteClaim(claim)
		c.waitVolumeDeleted(v)
	}
	c.disconnect(0)
	c.wantNothingLeft()
}

// The token expires while the link is cut. Remote pods continue; when the link is back, the driver reports the command
// that repairs the connection.
func TestSessionAfterAPartitionLongerThanTheTokenLifetime(t *testing.T) {
	kubeconfig, link := throughProxy(t)
	through, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	c := newConnection(t)
	c.server = through.Host
	c.connect(nil, "--level", "full")
	c.startNode()
	c.home.Claim("data", "liqo-reference", "64Mi")
	c.home.Pod("writer", "data", c.onVirtualNode)
	c.home.WaitReady("writer")
	c.remote.Exec("writer", "echo precious > /data/file && sync")
	pod := c.remote.WaitReady("writer")
	found := c.waitVolume("data")

	expires := c.setExpiry(45 * time.Second)
	c.waitStatus("the driver uses the token that expires soon", func(s status) bool {
		return hasCondition(s, "Ready", metav1.ConditionTrue, "Usable") && s.Credentials.Expires == expires.UTC().Format(time.RFC3339)
	})
	token := c.token()
	link(faults.Setting{Mode: faults.Hang})
	cut := time.Now()
	c.waitCondition("data", corev1.ConditionUnknown, "ClusterUnreachable")
	c.remote.Eventually("the token has expired", func(ctx context.Context) (string, error) {
		_, err := c.clientWith(token).CoreV1().PersistentVolumeClaims(c.remote.Name).List(ctx, metav1.ListOptions{})
		if apierrors.IsUnauthorized(err) {
			return "", nil
		}
		return fmt.Sprintf("the API server returns %v", err), nil
	})
	c.remote.Exec("writer", "echo meanwhile >> /data/file && sync")
	link(faults.Setting{Mode: faults.Pass})
	back := time.Now()
	command := "liqo-csi connect " + c.cluster
	c.waitStatus("the status names the command", func(s status) bool {
		return hasCondition(s, "Ready", metav1.ConditionFalse, "Unauthorized") && strings.Contains(s.LastError, "expired at") &&
			strings.Contains(s.LastError, command)
	})
	c.home.Eventually("doctor names the command", func(ctx context.Context) (string, error) {
		found, err := c.doctorOn(ctx, "RemoteCluster "+c.cluster)
		if strings.Contains(found, "expired at") && strings.Contains(found, command) {
			return "", nil
		}
		return fmt.Sprintf("it prints %q", found), err
	})
	reported := time.Now()

	c.connect(nil)
	c.waitCondition("data", corev1.ConditionTrue, "TwinBound")
	t.Logf("the link was cut for %.1fs; the driver reported the command after %.1fs, and it took %.1fs",
		back.Sub(cut).Seconds(), reported.Sub(back).Seconds(), time.Since(reported).Seconds())
	if now := c.remote.WaitReady("writer"); now.UID != pod.UID || now.Status.ContainerStatuses[0].RestartCount != 0 {
		user.Violated(t, "the remote pod was restarted: it is %s with %d restarts", now.UID, now.Status.ContainerStatuses[0].RestartCount)
	}
	if got := c.remote.Exec("writer", "cat /data/file"); got != "precious\nmeanwhile" {
		user.Violated(t, "the pod reads %q", got)
	}
	later := c.createAndRun("later", "true")
	c.home.DeletePod("writer")
	for claim, v := range map[string]user.Volume{"data": found, "later": later} {
		c.deleteClaim(claim)
		c.waitVolumeDeleted(v)
	}
	c.disconnect(0)
	c.wantNothingLeft()
}

// setExpiry sets the end of the driver's token, and its start just before that, so that it is not renewed earlier.
func (c *connection) setExpiry(life time.Duration) (expires time.Time) {
	c.t.Helper()
	expires = time.Now().Add(life).Truncate(time.Second)
	c.home.RedateToken("remote-"+c.cluster, c.remote.Cluster, expires.Add(-time.Second), expires)
	return expires
}
