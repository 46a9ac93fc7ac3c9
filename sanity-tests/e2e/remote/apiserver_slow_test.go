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

// A cluster that stops answering while several of its volumes are being rescued costs
// those time, and no others: theirs are rescued, made and deleted as if it were not there.
func TestSlowClusterDelaysNoOther(t *testing.T) {
	kubeconfig, link := throughProxy(t)
	p := newDedicatedPair(t, nil)
	p.putSecret(kubeconfig)
	p.declare(spec{"kubeconfigSecretRef": map[string]any{"name": p.cluster}})
	beside := *p
	beside.node, beside.cluster = sharedNode, sharedName
	found := beside.createWithData()
	var ill []user.Volume
	for i := range 4 {
		ill = append(ill, p.createUnused(fmt.Sprintf("far-%d", i)))
	}

	link(faults.Setting{Mode: faults.Delay, Up: time.Second, Down: time.Second})
	for _, v := range ill {
		p.deleteTwin(v)
	}
	p.waitRecoveryStarted(ill)
	link(faults.Setting{Mode: faults.Hang})
	for _, v := range ill {
		p.waitCondition(v.Claim.Name, corev1.ConditionUnknown, "ClusterUnreachable")
	}

	beside.deleteTwin(found)
	beside.waitTwinRecreated(found)
	beside.wantData()
	later := beside.createUnused("later")
	beside.deleteClaim("later")
	beside.wantGone(later)

	link(faults.Setting{Mode: faults.Pass})
	for _, v := range ill {
		p.waitTwinRecreated(v)
	}
}

// throughProxy is a kubeconfig that leads to the other cluster through a proxy which no other
// test uses. What is cleaned up later needs it still.
func throughProxy(t *testing.T) (kubeconfig []byte, set func(faults.Setting)) {
	t.Helper()
	ensureShared(t)
	server, err := url.Parse(serverOf(t, user.Cluster(t, "remote")))
	if err != nil {
		t.Fatal(err)
	}
	within := machine.Namespace{Name: user.Cluster(t, "home").Name()}
	relay := faults.Relay{
		Name: t.Name(), ListenIn: within, ListenOn: net.JoinHostPort(server.Hostname(), "0"), DialIn: within, DialTo: server.Host,
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
	// A test that fails in between is cleaned up through it.
	t.Cleanup(func() { _ = proxy.Set(faults.Setting{Mode: faults.Pass}) })
	server.Host = listener.Addr().String()
	return kubeconfigWith(t, func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) { c.Server = server.String() }), set
}

// waitRecoveryStarted waits until the driver has begun with one of these volumes.
func (p *pair) waitRecoveryStarted(all []user.Volume) {
	p.t.Helper()
	p.home.Eventually("the driver rescues a volume", func(ctx context.Context) (string, error) {
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
		return "nothing is wrong with any of them", nil
	})
}
