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
	// dnsReady is where CoreDNS says, in its namespace, whether it knows the cluster.
	dnsReady = "127.0.0.1:8181"
	// dnsService is the name under which programs look for it.
	dnsService = "kube-dns"
)

func (c *Cluster) corefile() string { return c.dir("Corefile") }

func (c *Cluster) dnsFlags() []string { return []string{"-conf=" + c.corefile()} }

// dnsConfig: of names outside the cluster nothing is known, and it is said at once.
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

// announceDNS makes the service by which pods reach CoreDNS, which runs beside the API server, and
// lets it read what names are made of, as its published manifests do.
func (c *Cluster) announceDNS(ctx context.Context) error {
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
			// Making it once more is refused for the sake of its address, not of its name.
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
			return fmt.Errorf("make the %s of the DNS of %s: %w", what, c.Name(), err)
		}
	}
	return nil
}

// dnsObjects are a service without a selector, and the address it stands for.
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
	for _, one := range []struct {
		name     string
		protocol corev1.Protocol
	}{{"dns", corev1.ProtocolUDP}, {"dns-tcp", corev1.ProtocolTCP}} {
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: one.name, Port: port, Protocol: one.protocol})
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &one.name, Port: &port, Protocol: &one.protocol})
	}
	return service, slice
}
