package remote

import (
	"maps"
	"slices"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/e2e/user"
)

// refusedKubeconfigs are kubeconfigs that would let their author act through the driver, by
// the words that name the field.
var refusedKubeconfigs = map[string]func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo){
	"exec: commands are never run": func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
		u.Exec = &clientcmdapi.ExecConfig{APIVersion: "client.authentication.k8s.io/v1", Command: "/bin/sh", InteractiveMode: clientcmdapi.NeverExecInteractiveMode}
	},
	"auth-provider": func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
		u.AuthProvider = &clientcmdapi.AuthProviderConfig{Name: "oidc"}
	},
	"tokenFile": func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
		u.TokenFile = "/var/run/secrets/kubernetes.io/serviceaccount/token"
	},
	"impersonation is refused": func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) { u.Impersonate = "system:admin" },
	"insecure-skip-tls-verify": func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) {
		c.InsecureSkipTLSVerify, c.CertificateAuthorityData = true, nil
	},
	"proxy-url": func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) { c.ProxyURL = "http://proxy.example.com:3128" },
	".server: ": func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) { c.Server = "https://127.0.0.1:6443" },
}

// Nothing is restarted: the Secret is followed.
func TestKubeconfigIsRefusedUntilItIsCorrected(t *testing.T) {
	p := newDedicatedPair(t, nil)
	p.putSecret(kubeconfigWith(t, refusedKubeconfigs["exec: commands are never run"]))
	p.declare(spec{"kubeconfigSecretRef": map[string]any{"name": p.cluster}})
	for i, field := range slices.Sorted(maps.Keys(refusedKubeconfigs)) {
		p.putSecret(kubeconfigWith(t, refusedKubeconfigs[field]))
		claim := "claim-" + string(rune('a'+i))
		p.home.Claim(claim, "liqo-reference", "64Mi")
		p.home.Pod(claim, claim, p.pinned)
		p.home.WaitEvent(claim, "ProvisioningFailed", "cluster "+p.cluster, "cannot be used", field)
		p.wantPending(claim)
		p.home.DeletePod(claim)
	}
	p.waitCapacity("liqo-reference", func(room int64) bool { return room == 0 })

	p.putSecret(shared.kubeconfig)
	p.home.Claim("data", "liqo-reference", "64Mi")
	p.home.Pod("user", "data", p.onVirtualNode)
	p.home.WaitReady("user")
	p.waitCapacity("liqo-reference", func(room int64) bool { return room > 0 })
}

func (p *pair) putSecret(kubeconfig []byte) {
	p.t.Helper()
	if err := putSecret(p.t.Context(), user.Cluster(p.t, "home"), p.cluster, kubeconfig); err != nil {
		p.t.Fatal(err)
	}
}

// kubeconfigWith is the kubeconfig that works, but for this.
func kubeconfigWith(t *testing.T, spoil func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo)) []byte {
	t.Helper()
	config, err := clientcmd.Load(shared.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	current := config.Contexts[config.CurrentContext]
	spoil(config.Clusters[current.Cluster], config.AuthInfos[current.AuthInfo])
	text, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// serverOf is the URL by which pods of the home cluster reach the remote one.
func serverOf(t *testing.T, remote *clusters.Cluster) string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(remote.ProxyKubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	return config.Clusters[config.Contexts[config.CurrentContext].Cluster].Server
}
