package clusters

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// dnsReady is CoreDNS's address for readiness checks, in its network namespace.
	dnsReady   = "127.0.0.1:8181"
	dnsService = "kube-dns"
)

func (c *Cluster) corefile() string { return c.dir("Corefile") }

func (c *Cluster) dnsFlags() []string { return []string{"-conf=" + c.corefile()} }

// dnsConfig resolves names of the cluster only, and refuses others at once.
func (c *Cluster) dnsConfig() string {
	return fmt.Sprintf(`cluster.local in-addr.arpa {
	errors
	ready %s
	kubernetes {
		kubeconfig %s
	}
}
`, dnsReady, c.dir(coreDNS+".kubeconfig"))
}

// createDNSObjects creates the service of CoreDNS, which runs beside the API server, and its RBAC as
// in its published manifests.
func (c *Cluster) createDNSObjects(ctx context.Context) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: dnsUser}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"endpoints", "services", "pods", "namespaces"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{discoveryv1.GroupName}, Resources: []string{"endpointslices"}, Verbs: []string{"list", "watch"}},
	}}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: dnsUser},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: dnsUser},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: dnsUser}},
	}
	service, slice := c.dnsObjects()
	for what, create := range map[string]func() error{
		"role": func() error {
			_, err := client.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{})
			return err
		},
		"binding": func() error {
			_, err := client.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{})
			return err
		},
		"service": func() error {
			// Create fails because of the allocated address, and not with AlreadyExists.
			_, err := client.CoreV1().Services(metav1.NamespaceSystem).Get(ctx, dnsService, metav1.GetOptions{})
			if !apierrors.IsNotFound(err) {
				return err
			}
			_, err = client.CoreV1().Services(metav1.NamespaceSystem).Create(ctx, service, metav1.CreateOptions{})
			return err
		},
		"addresses": func() error {
			_, err := client.DiscoveryV1().EndpointSlices(metav1.NamespaceSystem).Create(ctx, slice, metav1.CreateOptions{})
			return err
		},
	} {
		if err := create(); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create the %s of the DNS of %s: %w", what, c.Name(), err)
		}
	}
	return nil
}

// dnsObjects returns a service without a selector, and its endpoint.
func (c *Cluster) dnsObjects() (*corev1.Service, *discoveryv1.EndpointSlice) {
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: dnsService},
		Spec:       corev1.ServiceSpec{ClusterIP: c.dnsServiceIP()},
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: dnsService, Labels: map[string]string{discoveryv1.LabelServiceName: dnsService}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{c.controlPlaneIP()}}},
	}
	port := int32(53)
	for _, p := range []struct {
		name     string
		protocol corev1.Protocol
	}{{"dns", corev1.ProtocolUDP}, {"dns-tcp", corev1.ProtocolTCP}} {
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: p.name, Port: port, Protocol: p.protocol})
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.name, Port: &port, Protocol: &p.protocol})
	}
	return service, slice
}
