package remote

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/faults"
	"storage.liqo.io/sanity-tests/machine"
)

// A cluster becomes unreachable during the recovery of several of its volumes. Volumes in other clusters are
// recovered, created and deleted meanwhile.
func TestSlowClusterDoesNotDelayOthers(t *testing.T) {
	kubeconfig, link := throughProxy(t)
	p := newDedicatedPair(t, nil)
	p.putSecret(kubeconfig)
	p.declare(spec{"kubeconfigSecretRef": map[string]any{"name": p.cluster}})
	other := *p
	other.node, other.cluster = sharedNode, sharedName
	found := other.createWithData()
	var slow []user.Volume
	for i := range 4 {
		slow = append(slow, p.createUnused(fmt.Sprintf("far-%d", i)))
	}

	link(faults.Setting{Mode: faults.Delay, Up: time.Second, Down: time.Second})
	for _, v := range slow {
		p.deleteTwin(v)
	}
	p.waitRecoveryStarted(slow)
	link(faults.Setting{Mode: faults.Hang})
	for _, v := range slow {
		p.waitCondition(v.Claim.Name, corev1.ConditionUnknown, "ClusterUnreachable")
	}

	other.deleteTwin(found)
	other.waitTwinRecreated(found)
	other.wantData()
	later := other.createUnused("later")
	other.deleteClaim("later")
	other.waitVolumeDeleted(later)

	link(faults.Setting{Mode: faults.Pass})
	for _, v := range slow {
		p.waitTwinRecreated(v)
	}
}

// throughProxy returns a kubeconfig that reaches the remote cluster through a proxy of this test, and a function
// that sets a fault. The clean-up of later objects uses the proxy.
func throughProxy(t *testing.T) (kubeconfig []byte, set func(faults.Setting)) {
	t.Helper()
	ensureShared(t)
	server, err := url.Parse(serverOf(t, user.Cluster(t, "remote")))
	if err != nil {
		t.Fatal(err)
	}
	in := machine.Namespace{Name: user.Cluster(t, "home").Name()}
	relay := faults.Relay{
		Name: t.Name(), ListenIn: in, ListenOn: net.JoinHostPort(server.Hostname(), "0"), DialIn: in, DialTo: server.Host,
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	listener, err := relay.Listen(ctx)
	if err != nil {
		t.Fatal(err)
	}
	proxy := faults.NewProxy(relay.Dial)
	ended := make(chan error)
	go func() { ended <- proxy.Serve(ctx, listener) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	set = func(setting faults.Setting) {
		t.Helper()
		if err := proxy.Set(setting); err != nil {
			t.Fatal(err)
		}
	}
	// For the clean-up of a failed test.
	t.Cleanup(func() { _ = proxy.Set(faults.Setting{Mode: faults.Pass}) })
	server.Host = listener.Addr().String()
	return kubeconfigWith(t, func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) { c.Server = server.String() }), set
}

// waitRecoveryStarted waits until the driver has started to recover one of these volumes.
func (p *pair) waitRecoveryStarted(all []user.Volume) {
	p.t.Helper()
	p.home.Eventually("the recovery of a volume has started", func(ctx context.Context) (string, error) {
		for _, v := range all {
			claim, err := p.home.Client.CoreV1().PersistentVolumeClaims(p.home.Name).Get(ctx, v.Claim.Name, metav1.GetOptions{})
			if err != nil {
				return "", err
			}
			for _, condition := range claim.Status.Conditions {
				if condition.Type == twinReady && condition.Reason != "TwinBound" {
					return "", nil
				}
			}
			if twin, err := p.twin(ctx, v.Twin.Name); err == nil && twin.UID != v.Twin.UID {
				return "", nil
			}
		}
		return "all conditions and twins are unchanged", nil
	})
}
