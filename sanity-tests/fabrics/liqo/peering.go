package liqo

import (
	"context"
	"errors"
	"fmt"

	authv1beta1 "github.com/liqotech/liqo/apis/authentication/v1beta1"
	liqov1beta1 "github.com/liqotech/liqo/apis/core/v1beta1"
	offloadingv1beta1 "github.com/liqotech/liqo/apis/offloading/v1beta1"
	"github.com/liqotech/liqo/pkg/consts"
	"github.com/liqotech/liqo/pkg/liqo-controller-manager/offloading/forge"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"storage.liqo.io/fabrics/cluster"
)

// Peering is a peering for one virtual node. A cluster may have several, one per node.
type Peering struct {
	ClusterID string
	// Node is the name of the Node and of the VirtualNode.
	Node string
	// Kubeconfig is used unchanged and not validated, because tests need invalid ones.
	Kubeconfig []byte
	// StorageClasses of the remote cluster; the first is its default.
	StorageClasses []string
	// TenantNamespace; if empty, the existing one or Liqo's default.
	TenantNamespace string
	// ProxyURL is set in the kubeconfig unless it is empty.
	ProxyURL string
}

// Peer creates or updates the objects of a peering, except mappings of namespaces.
func (h Home) Peer(ctx context.Context, p Peering) error {
	if p.ClusterID == "" || p.Node == "" {
		return errors.New("a peering needs a cluster ID and a node")
	}
	if err := h.Install(ctx); err != nil {
		return err
	}
	return h.enforce(ctx, p)
}

func (h Home) enforce(ctx context.Context, p Peering) error {
	kubeconfig, err := withProxy(p.Kubeconfig, p.ProxyURL)
	if err != nil {
		return fmt.Errorf("set the proxy in the kubeconfig of cluster %s: %w", p.ClusterID, err)
	}
	tenant, err := h.enforceTenantNamespace(ctx, p)
	if err != nil {
		return err
	}
	identity, err := h.enforceIdentity(ctx, tenant, p, kubeconfig)
	if err != nil {
		return err
	}
	if err := h.enforceSecret(ctx, identity, kubeconfig); err != nil {
		return err
	}
	if err := h.enforceNamespaceMap(ctx, tenant, p.ClusterID); err != nil {
		return err
	}
	// Last, as with Liqo, so that everything that the VirtualNode refers to exists.
	return h.enforceVirtualNode(ctx, tenant, p)
}

func (h Home) enforceTenantNamespace(ctx context.Context, p Peering) (string, error) {
	existing, err := h.tenantNamespace(ctx, p.ClusterID)
	if err != nil {
		return "", err
	}
	name := p.TenantNamespace
	switch {
	case name == "" && existing == "":
		name = defaultTenantNamespace(p.ClusterID)
	case name == "":
		name = existing
	case existing != "" && existing != name:
		return "", fmt.Errorf("cluster %s already has the tenant namespace %s; unpeer before peering with %s", p.ClusterID, existing, name)
	}
	namespace := &corev1.Namespace{ObjectMeta: named("", name)}
	return name, h.Enforce(ctx, namespace, func() error {
		label(namespace, tenantLabels(p.ClusterID))
		return nil
	})
}

func tenantLabels(clusterID string) map[string]string {
	return map[string]string{
		consts.RemoteClusterID:              clusterID,
		consts.TenantNamespaceLabel:         "true",
		consts.PodSecurityAuditLevelLabel:   consts.PodSecurityLevelPrivileged,
		consts.PodSecurityEnforceLevelLabel: consts.PodSecurityLevelPrivileged,
		consts.PodSecurityWarnLevelLabel:    consts.PodSecurityLevelPrivileged,
	}
}

// enforceIdentity: its ResourceSlice has the name of the node, as with `liqoctl peer`.
func (h Home) enforceIdentity(ctx context.Context, tenant string, p Peering, kubeconfig []byte) (*authv1beta1.Identity, error) {
	identity := &authv1beta1.Identity{ObjectMeta: named(tenant, "resourceslice-"+p.Node)}
	err := h.Enforce(ctx, identity, func() error {
		label(identity, map[string]string{consts.RemoteClusterID: p.ClusterID, consts.ResourceSliceNameLabelKey: p.Node})
		identity.Spec.ClusterID = liqov1beta1.ClusterID(p.ClusterID)
		identity.Spec.Type = authv1beta1.ResourceSliceIdentityType
		identity.Spec.AuthParams = authParams(kubeconfig)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return identity, h.EnforceStatus(ctx, identity, func() {
		identity.Status.KubeconfigSecretRef = &corev1.LocalObjectReference{Name: secretName(identity.Name)}
	})
}

func (h Home) enforceSecret(ctx context.Context, identity *authv1beta1.Identity, kubeconfig []byte) error {
	secret := &corev1.Secret{ObjectMeta: named(identity.Namespace, secretName(identity.Name))}
	return h.Enforce(ctx, secret, func() error {
		label(secret, secretLabels(string(identity.Spec.ClusterID)))
		secret.Data = map[string][]byte{consts.KubeconfigSecretField: kubeconfig}
		return controllerutil.SetControllerReference(identity, secret, h.Scheme())
	})
}

func secretName(identity string) string { return "kubeconfig-" + identity }

func secretLabels(clusterID string) map[string]string {
	return map[string]string{
		consts.RemoteClusterID:      clusterID,
		consts.IdentityTypeLabelKey: string(authv1beta1.ResourceSliceIdentityType),
	}
}

func (h Home) enforceVirtualNode(ctx context.Context, tenant string, p Peering) error {
	node := forge.VirtualNode(p.Node, tenant)
	options := &forge.VirtualNodeOptions{
		KubeconfigSecretRef: corev1.LocalObjectReference{Name: secretName("resourceslice-" + p.Node)},
		ResourceList:        defaultResources,
		StorageClasses:      storageTypes(p.StorageClasses),
	}
	err := h.Enforce(ctx, node, func() error {
		return forge.MutateVirtualNode(ctx, h, node, liqov1beta1.ClusterID(p.ClusterID), options, ptr.To(true), ptr.To(false), nil)
	})
	if err != nil {
		return err
	}
	return h.EnforceStatus(ctx, node, func() {
		if len(node.Status.Conditions) > 0 {
			return
		}
		for _, condition := range []offloadingv1beta1.VirtualNodeConditionType{
			offloadingv1beta1.VirtualKubeletConditionType, offloadingv1beta1.NodeConditionType,
		} {
			node.Status.Conditions = append(node.Status.Conditions, offloadingv1beta1.VirtualNodeCondition{
				Type: condition, Status: offloadingv1beta1.RunningConditionStatusType, LastTransitionTime: metav1.Now(),
			})
		}
	})
}

// defaultResources are the defaults of Liqo's ResourceSlices.
var defaultResources = corev1.ResourceList{
	corev1.ResourceCPU:              resource.MustParse("4"),
	corev1.ResourceMemory:           resource.MustParse("8Gi"),
	corev1.ResourcePods:             resource.MustParse("110"),
	corev1.ResourceEphemeralStorage: resource.MustParse("20Gi"),
}

func storageTypes(classes []string) []liqov1beta1.StorageType {
	var types []liqov1beta1.StorageType
	for i, name := range classes {
		types = append(types, liqov1beta1.StorageType{StorageClassName: name, Default: i == 0})
	}
	return types
}

// Rotate updates the Secrets of a cluster, as Liqo does when it renews a certificate. All its virtual
// nodes get the same kubeconfig, unchanged.
func (h Home) Rotate(ctx context.Context, clusterID string, kubeconfig []byte) error {
	var identities authv1beta1.IdentityList
	err := cluster.IgnoreAbsent(h.List(ctx, &identities, client.MatchingLabels{consts.RemoteClusterID: clusterID}))
	if err != nil {
		return fmt.Errorf("list identities of cluster %s: %w", clusterID, err)
	}
	if len(identities.Items) == 0 {
		return notPeered(clusterID)
	}
	for i := range identities.Items {
		identity := &identities.Items[i]
		err := h.Enforce(ctx, identity, func() error {
			identity.Spec.AuthParams = authParams(kubeconfig)
			return nil
		})
		if err != nil {
			return err
		}
		if err := h.enforceSecret(ctx, identity, kubeconfig); err != nil {
			return err
		}
	}
	return nil
}

// Unpeer deletes all peerings with a cluster in Liqo's order: the virtual nodes, the mappings, the
// credentials, and the tenant namespace.
func (h Home) Unpeer(ctx context.Context, clusterID string) error {
	tenant, err := h.tenantNamespace(ctx, clusterID)
	if err != nil || tenant == "" {
		return err
	}
	for _, kind := range []client.Object{
		&offloadingv1beta1.VirtualNode{}, &offloadingv1beta1.NamespaceMap{}, &authv1beta1.Identity{}, &corev1.Secret{},
	} {
		err := h.DeleteAllOf(ctx, kind, client.InNamespace(tenant), client.MatchingLabels{consts.RemoteClusterID: clusterID})
		if cluster.IgnoreAbsent(err) != nil {
			return fmt.Errorf("delete each %T of cluster %s: %w", kind, clusterID, err)
		}
	}
	return h.removeTenants(ctx, client.MatchingLabels{consts.RemoteClusterID: clusterID}, client.HasLabels{consts.TenantNamespaceLabel})
}

func notPeered(clusterID string) error {
	return fmt.Errorf("cluster %s is not peered with: create a peering first", clusterID)
}
