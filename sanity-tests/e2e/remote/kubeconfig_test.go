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

// refusedKubeconfigs have fields by which their author could use rights of the driver. The key is in the message of
// the refusal.
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

// The driver watches the Secret.
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
	p.waitCapacity("liqo-reference", func(bytes int64) bool { return bytes == 0 })

	p.putSecret(shared.kubeconfig)
	p.startPod("user", "data", "liqo-reference")
	p.waitCapacity("liqo-reference", func(bytes int64) bool { return bytes > 0 })
}

func (p *pair) putSecret(kubeconfig []byte) {
	p.t.Helper()
	if err := putSecret(p.t.Context(), user.Cluster(p.t, "home"), p.cluster, kubeconfig); err != nil {
		p.t.Fatal(err)
	}
}

// kubeconfigWith returns the shared kubeconfig with a change.
func kubeconfigWith(t *testing.T, edit func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo)) []byte {
	t.Helper()
	config, err := clientcmd.Load(shared.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	current := config.Contexts[config.CurrentContext]
	edit(config.Clusters[current.Cluster], config.AuthInfos[current.AuthInfo])
	text, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// serverOf returns the URL of the remote cluster for pods at home.
func serverOf(t *testing.T, remote *clusters.Cluster) string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(remote.ProxyKubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	return config.Clusters[config.Contexts[config.CurrentContext].Cluster].Server
}
