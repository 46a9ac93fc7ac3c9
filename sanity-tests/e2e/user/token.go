package user

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/clusters"
)

// RedateToken changes the dates of the token in this kubeconfig Secret of the driver, with which it reaches the remote
// cluster. Its API server accepts an expired token for one minute longer.
func (n *Namespace) RedateToken(secret string, remote *clusters.Cluster, issued, expires time.Time) {
	n.t.Helper()
	secrets := n.Client.CoreV1().Secrets(chart.Namespace)
	found, err := secrets.Get(n.t.Context(), secret, metav1.GetOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	config, err := clientcmd.Load(found.Data["kubeconfig"])
	if err != nil {
		n.t.Fatal(err)
	}
	for _, info := range config.AuthInfos {
		if info.Token, err = remote.Redated(info.Token, issued, expires); err != nil {
			n.t.Fatal(err)
		}
	}
	if found.Data["kubeconfig"], err = clientcmd.Write(*config); err != nil {
		n.t.Fatal(err)
	}
	if _, err := secrets.Update(n.t.Context(), found, metav1.UpdateOptions{}); err != nil {
		n.t.Fatal(err)
	}
}
