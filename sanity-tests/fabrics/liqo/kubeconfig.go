package liqo

import (
	authv1beta1 "github.com/liqotech/liqo/apis/authentication/v1beta1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
)

// withProxy sets a proxy in all clusters of a kubeconfig. Without a proxy it returns the same bytes.
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

// authParams returns the parameters of an Identity with this kubeconfig. They are empty for an
// invalid kubeconfig, which some tests need.
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
