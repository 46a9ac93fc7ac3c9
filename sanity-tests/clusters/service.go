package clusters

import (
	"context"
	"fmt"
	"net"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/faults"
)

// ServiceCIDR returns the address range of services.
func (c *Cluster) ServiceCIDR() string { return c.serviceCIDR() }

// ServiceRelay returns a relay from the address of a service to one of its pods, in the namespace of
// the control plane: it has no kube-proxy, and the API server calls webhooks from there.
func (c *Cluster) ServiceRelay(ctx context.Context, namespace, name string) (relay faults.Relay, remove func(context.Context) error, err error) {
	client, err := c.Client()
	if err != nil {
		return relay, nil, err
	}
	service, err := client.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return relay, nil, fmt.Errorf("get service %s/%s: %w", namespace, name, err)
	}
	slices, err := client.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=" + name,
	})
	if err != nil {
		return relay, nil, fmt.Errorf("list the endpoints of service %s/%s: %w", namespace, name, err)
	}
	endpoint, found := endpointOf(slices.Items)
	if !found || service.Spec.ClusterIP == corev1.ClusterIPNone || len(service.Spec.Ports) != 1 {
		return relay, nil, fmt.Errorf("the service %s/%s needs an address, one port and a ready pod", namespace, name)
	}

	controlPlane := c.controlPlaneNet()
	address := service.Spec.ClusterIP + "/32 dev lo"
	if err := controlPlane.Links(ctx, "addr replace "+address); err != nil {
		return relay, nil, err
	}
	remove = func(ctx context.Context) error { return controlPlane.Links(ctx, "addr del "+address) }
	return faults.Relay{
		Name:     c.Name() + "/" + name,
		ListenIn: controlPlane,
		ListenOn: net.JoinHostPort(service.Spec.ClusterIP, strconv.Itoa(int(service.Spec.Ports[0].Port))),
		DialIn:   controlPlane,
		DialTo:   endpoint,
	}, remove, nil
}

func endpointOf(slices []discoveryv1.EndpointSlice) (address string, found bool) {
	for _, slice := range slices {
		for _, endpoint := range slice.Endpoints {
			ready := endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready
			if ready && len(endpoint.Addresses) > 0 && len(slice.Ports) > 0 && slice.Ports[0].Port != nil {
				return net.JoinHostPort(endpoint.Addresses[0], strconv.Itoa(int(*slice.Ports[0].Port))), true
			}
		}
	}
	return "", false
}
