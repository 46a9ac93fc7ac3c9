// Package liqo creates Liqo's objects in a cluster: in a home cluster (Liqo: consumer) those of a
// peering, in a remote cluster (provider) the rights and the certificate of the home cluster. It uses
// Liqo's Go code for kinds, labels, VirtualNodes, certificate requests and kubeconfigs, and files of
// its module for definitions and rights. It runs no controllers: no pods are offloaded, no remote
// namespaces and no Nodes are created.
package liqo

import (
	"context"
	"fmt"
	"maps"

	authv1beta1 "github.com/liqotech/liqo/apis/authentication/v1beta1"
	offloadingv1beta1 "github.com/liqotech/liqo/apis/offloading/v1beta1"
	"github.com/liqotech/liqo/pkg/consts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"storage.liqo.io/fabrics/cluster"
)

// Home is a consumer cluster.
type Home struct{ cluster.Cluster }

// OpenHome returns a client of a home cluster.
func OpenHome(kubeconfig string) (Home, error) {
	c, err := cluster.Open(kubeconfig, offloadingv1beta1.AddToScheme, authv1beta1.AddToScheme)
	return Home{c}, err
}

// Install creates Liqo's definitions: a Liqo without peerings.
func (h Home) Install(ctx context.Context) error {
	definitions, err := Definitions(ctx)
	if err != nil {
		return err
	}
	return h.Define(ctx, definitions)
}

// Remove deletes all peerings and Liqo's definitions.
func (h Home) Remove(ctx context.Context) error {
	definitions, err := Definitions(ctx)
	if err != nil {
		return err
	}
	if err := h.Undefine(ctx, definitions); err != nil {
		return err
	}
	return h.removeTenants(ctx, client.HasLabels{consts.TenantNamespaceLabel})
}

// tenantNamespace returns the namespace of the peering with a cluster, by its labels as in Liqo, or
// "".
func (h Home) tenantNamespace(ctx context.Context, clusterID string) (string, error) {
	var found corev1.NamespaceList
	err := h.List(ctx, &found, client.MatchingLabels{consts.RemoteClusterID: clusterID}, client.HasLabels{consts.TenantNamespaceLabel})
	switch {
	case err != nil:
		return "", fmt.Errorf("find the tenant namespace of %s: %w", clusterID, err)
	case len(found.Items) == 0:
		return "", nil
	case len(found.Items) > 1:
		return "", fmt.Errorf("cluster %s has %d tenant namespaces; Liqo has one per cluster", clusterID, len(found.Items))
	}
	return found.Items[0].Name, nil
}

func (h Home) removeTenants(ctx context.Context, which ...client.ListOption) error {
	var tenants corev1.NamespaceList
	if err := h.List(ctx, &tenants, which...); err != nil {
		return fmt.Errorf("list tenant namespaces: %w", err)
	}
	for i := range tenants.Items {
		if err := h.DeleteAndWait(ctx, &tenants.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

func defaultTenantNamespace(clusterID string) string { return "liqo-tenant-" + clusterID }

func named(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

// label sets labels and keeps others.
func label(object client.Object, labels map[string]string) {
	all := object.GetLabels()
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, labels)
	object.SetLabels(all)
}
