package liqo

import (
	authv1beta1 "github.com/liqotech/liqo/apis/authentication/v1beta1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
)

// withProxy writes a proxy into all clusters of a kubeconfig. Without a proxy
// the kubeconfig stays as it is, to the byte.
func withProxy(kubeconfig []byte, proxyURL string) ([]byte, error) {
	if proxyURL == "" {
		return kubeconfig, nil
	}
	config, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return nil, err
	}
	for _, known := range config.Clusters {
		known.ProxyURL = proxyURL
	}
	return clientcmd.Write(*config)
}

// authParams are what an Identity says of its kubeconfig. Of one that cannot be
// read it says nothing: such a Secret is what some tests are about.
func authParams(kubeconfig []byte) authv1beta1.AuthParams {
	config, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return authv1beta1.AuthParams{}
	}
	context := config.Contexts[config.CurrentContext]
	if context == nil {
		return authv1beta1.AuthParams{}
	}
	target, user := config.Clusters[context.Cluster], config.AuthInfos[context.AuthInfo]
	if target == nil {
		target = &clientcmdapi.Cluster{}
	}
	if user == nil {
		user = &clientcmdapi.AuthInfo{}
	}
	params := authv1beta1.AuthParams{
		APIServer: target.Server,
		CA:        target.CertificateAuthorityData,
		SignedCRT: user.ClientCertificateData,
	}
	if target.ProxyURL != "" {
		params.ProxyURL = ptr.To(target.ProxyURL)
	}
	return params
}
