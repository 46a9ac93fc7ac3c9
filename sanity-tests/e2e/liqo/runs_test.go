package liqo

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/liqo"
)

// The subtests name the programs of Liqo with which the other tests ran: those of its chart in both clusters and, at
// home, the virtual kubelet that Liqo started.
func TestLiqosProgramsRun(t *testing.T) {
	prepare(t)
	for _, one := range []struct {
		cluster, namespace string
		programs           []string
	}{
		{"home", "liqo", []string{"liqo-controller-manager", "crd-replicator", "webhook"}},
		{"home", liqo.TenantNamespace, []string{"virtual-kubelet"}},
		{"remote", "liqo", []string{"liqo-controller-manager", "crd-replicator", "webhook"}},
	} {
		client, err := user.Cluster(t, one.cluster).Client()
		if err != nil {
			t.Fatal(err)
		}
		deployments, err := client.AppsV1().Deployments(one.namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ready := map[string]bool{}
		for _, deployment := range deployments.Items {
			for _, container := range deployment.Spec.Template.Spec.Containers {
				ready[container.Image] = deployment.Status.ReadyReplicas > 0
			}
		}
		for _, program := range one.programs {
			image := "ghcr.io/liqotech/" + program + ":" + shared.peering.Version
			t.Run(one.cluster+" "+program+" "+shared.peering.Version, func(t *testing.T) {
				if !ready[image] {
					t.Errorf("%s is not ready: %v", image, ready)
				}
			})
		}
	}
}
