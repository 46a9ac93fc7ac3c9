package clusters

import (
	"fmt"
	"os"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"storage.liqo.io/sanity-tests/machine"
	"storage.liqo.io/sanity-tests/nodes"
	"storage.liqo.io/sanity-tests/pki"
)

// Names of the authorities, keys and users in a cluster's certificate folder.
const (
	clusterCA      = "ca"
	frontProxyCA   = "front-proxy-ca"
	serviceAccount = "sa"
	adminUser      = "lab-admin"
	kubeletClient  = "kube-apiserver-kubelet-client"
	kubeProxy      = "kube-proxy"
	dnsUser        = "system:coredns"
)

// issueCertificates issues the certificates of the control plane and its users.
func (c *Cluster) issueCertificates() error {
	dir := c.pki()
	authority, err := dir.Authority(clusterCA)
	if err != nil {
		return err
	}
	requests := []pki.Request{
		{Name: "etcd", CommonName: "etcd", Hosts: []string{c.controlPlaneIP(), "127.0.0.1"}},
		{Name: "etcd-client", CommonName: "kube-apiserver-etcd-client"},
		{Name: "kube-apiserver", CommonName: "kube-apiserver", Hosts: c.apiServerNames()},
		{Name: kubeletClient, CommonName: kubeletClient},
		{Name: adminUser, CommonName: adminUser, Organizations: []string{"system:masters"}},
		{Name: controllerManager, CommonName: "system:kube-controller-manager", Hosts: []string{"127.0.0.1"}},
		{Name: scheduler, CommonName: "system:kube-scheduler", Hosts: []string{"127.0.0.1"}},
		{Name: kubeProxy, CommonName: "system:kube-proxy"},
		{Name: coreDNS, CommonName: dnsUser},
	}
	for _, request := range requests {
		if err := authority.Issue(dir, request); err != nil {
			return err
		}
	}
	frontProxy, err := dir.Authority(frontProxyCA)
	if err != nil {
		return err
	}
	if err := frontProxy.Issue(dir, pki.Request{Name: "front-proxy-client", CommonName: "front-proxy-client"}); err != nil {
		return err
	}
	if err := dir.ServiceAccountKey(serviceAccount); err != nil {
		return fmt.Errorf("create the service account key of %s: %w", c.Name(), err)
	}
	return c.writeKubeconfigs()
}

// apiServerNames are the names and addresses by which the API server is reached: from its nodes and
// pods, from the host through a forwarder, from the first cluster through the fault proxy.
func (c *Cluster) apiServerNames() []string {
	return []string{
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
		"localhost", "127.0.0.1", c.controlPlaneIP(), c.apiServiceIP(), c.lab.clusters[0].proxyIP(),
	}
}

// issueNodeCertificates writes the certificates and kubeconfigs of kubelet and kube-proxy into each
// node.
func (c *Cluster) issueNodeCertificates() error {
	authority, err := c.pki().Authority(clusterCA)
	if err != nil {
		return err
	}
	ca, err := os.ReadFile(c.pki().Cert(clusterCA))
	if err != nil {
		return err
	}
	for _, node := range c.nodes {
		dir := pki.Dir(node.HostPath(nodes.CertificateDir))
		for _, request := range []pki.Request{
			{Name: "client", CommonName: "system:node:" + node.Name, Organizations: []string{"system:nodes"}},
			{Name: "serving", CommonName: "system:node:" + node.Name, Hosts: []string{node.Name, node.IP}},
		} {
			if err := authority.Issue(dir, request); err != nil {
				return err
			}
		}
		if err := os.WriteFile(dir.Cert(clusterCA), ca, 0o644); err != nil {
			return fmt.Errorf("write the authority of node %s: %w", node.Name, err)
		}
		if err := c.writeKubeconfig(node.HostPath(nodes.Kubeconfig), c.internalURL(), "system:node:"+node.Name,
			dir.Cert("client"), dir.Key("client")); err != nil {
			return err
		}
		if err := c.writeKubeconfig(node.HostPath(nodes.ProxyKubeconfig), c.internalURL(), kubeProxy,
			c.pki().Cert(kubeProxy), c.pki().Key(kubeProxy)); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) internalURL() string { return "https://" + c.controlPlaneIP() }

func (c *Cluster) writeKubeconfigs() error {
	dir := c.pki()
	for _, config := range []struct{ file, server, user string }{
		{c.Kubeconfig(), "https://" + c.forwarded(), adminUser},
		{c.ProxyKubeconfig(), "https://" + c.proxied(), adminUser},
		{c.dir(controllerManager + ".kubeconfig"), c.internalURL(), controllerManager},
		{c.dir(scheduler + ".kubeconfig"), c.internalURL(), scheduler},
		{c.dir(coreDNS + ".kubeconfig"), c.internalURL(), coreDNS},
	} {
		if err := c.writeKubeconfig(config.file, config.server, config.user, dir.Cert(config.user), dir.Key(config.user)); err != nil {
			return err
		}
	}
	return nil
}

// writeKubeconfig writes a kubeconfig with inline certificates, so that it can be copied.
func (c *Cluster) writeKubeconfig(file, server, user, certFile, keyFile string) error {
	config := clientcmdapi.NewConfig()
	var failure error
	read := func(path string) []byte {
		content, err := os.ReadFile(path)
		if err != nil {
			failure = err
		}
		return content
	}
	config.Clusters[c.Name()] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: read(c.pki().Cert(clusterCA))}
	config.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificateData: read(certFile), ClientKeyData: read(keyFile)}
	config.Contexts[c.Name()] = &clientcmdapi.Context{Cluster: c.Name(), AuthInfo: user}
	config.CurrentContext = c.Name()
	content, err := clientcmd.Write(*config)
	if failure == nil {
		failure = err
	}
	if failure == nil {
		failure = machine.WriteFile(file, content, 0o600)
	}
	if failure != nil {
		return fmt.Errorf("write the kubeconfig %s: %w", file, failure)
	}
	return nil
}

// Redated is a token of the cluster with other dates.
func (c *Cluster) Redated(token string, issued, expires time.Time) (string, error) {
	return c.pki().Redated(serviceAccount, token, issued, expires)
}
