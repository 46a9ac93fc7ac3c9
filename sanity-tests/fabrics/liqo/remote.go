package liqo

import (
	"context"
	"fmt"

	"github.com/liqotech/liqo/pkg/consts"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"storage.liqo.io/fabrics/cluster"
)

// Remote is a provider cluster.
type Remote struct{ cluster.Cluster }

// OpenRemote returns a client of a remote cluster.
func OpenRemote(kubeconfig string) (Remote, error) {
	c, err := cluster.Open(kubeconfig)
	return Remote{c}, err
}

// Allow grants a home cluster the rights of Liqo's virtual kubelet in namespaces, which it creates
// if they do not exist.
func (r Remote) Allow(ctx context.Context, homeID string, namespaces ...string) error {
	rules, err := remoteRules(ctx)
	if err != nil {
		return err
	}
	role := &rbacv1.ClusterRole{ObjectMeta: named("", consts.RemoteNamespaceClusterRoleName)}
	err = r.Enforce(ctx, role, func() error {
		label(role, map[string]string{consts.K8sAppManagedByKey: consts.LiqoAppLabelValue})
		role.Rules = rules
		return nil
	})
	if err != nil {
		return err
	}
	for _, namespace := range namespaces {
		if err := r.bind(ctx, homeID, namespace); err != nil {
			return err
		}
	}
	return nil
}

func (r Remote) bind(ctx context.Context, homeID, namespace string) error {
	created := &corev1.Namespace{ObjectMeta: named("", namespace)}
	label(created, map[string]string{consts.RemoteClusterID: homeID})
	if err := client.IgnoreAlreadyExists(r.Create(ctx, created)); err != nil {
		return fmt.Errorf("create namespace %s in %s: %w", namespace, r.Config.Host, err)
	}
	// It has the name of the tenant namespace in this cluster, as with Liqo.
	binding := &rbacv1.RoleBinding{ObjectMeta: named(namespace, defaultTenantNamespace(homeID))}
	return r.Enforce(ctx, binding, func() error {
		label(binding, bindingLabels(homeID))
		binding.Subjects = []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: homeID}}
		binding.RoleRef = rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: consts.RemoteNamespaceClusterRoleName}
		return nil
	})
}

func bindingLabels(homeID string) map[string]string {
	return map[string]string{consts.K8sAppManagedByKey: consts.LiqoAppLabelValue, consts.RemoteClusterID: homeID}
}

// Forbid revokes all rights of a home cluster, and deletes the role if no other cluster uses it. It
// keeps the namespaces.
func (r Remote) Forbid(ctx context.Context, homeID string) error {
	var bindings rbacv1.RoleBindingList
	if err := r.List(ctx, &bindings, client.MatchingLabels{consts.K8sAppManagedByKey: consts.LiqoAppLabelValue}); err != nil {
		return fmt.Errorf("list role bindings in %s: %w", r.Config.Host, err)
	}
	othersRemain := false
	for i := range bindings.Items {
		binding := &bindings.Items[i]
		if binding.Labels[consts.RemoteClusterID] != homeID {
			othersRemain = true
			continue
		}
		if err := r.DeleteAndWait(ctx, binding); err != nil {
			return err
		}
	}
	if othersRemain {
		return nil
	}
	return r.DeleteAndWait(ctx, &rbacv1.ClusterRole{ObjectMeta: named("", consts.RemoteNamespaceClusterRoleName)})
}
