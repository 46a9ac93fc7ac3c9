package offload

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// endpointCIDRs are the addresses that the EndpointSlices of the restricted home cluster may contain.
var endpointCIDRs = []string{"10.0.0.0/16", "fd00::/48"}

const fabricManager = "fabric.storage.liqo.io"

func newSlice(manager string, family discoveryv1.AddressType, address string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "restricted", Labels: map[string]string{
			discoveryv1.LabelServiceName: "db", discoveryv1.LabelManagedBy: manager,
		}},
		AddressType: family,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{address}}},
	}
}

func slicesAreRestricted(t *testing.T, client kubernetes.Interface, own, other string) {
	onNode, ofPod := newSlice(fabricManager, "IPv4", "10.0.0.1"), newSlice(fabricManager, "IPv4", "10.0.0.1")
	onNode.Endpoints[0].NodeName = new("remote-1")
	ofPod.Endpoints[0].TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: other, Name: "db-0"}
	const controller, elsewhere = "endpointslice-controller.k8s.io", "only in the namespaces of its fabric"
	for what, one := range map[string]struct {
		namespace string
		slice     *discoveryv1.EndpointSlice
		words     string
	}{
		"the address of a pod of the home cluster": {own, newSlice(fabricManager, "IPv4", "10.0.0.1"), ""},
		"an address of the other family":           {own, newSlice(fabricManager, "IPv6", "fd00::1"), ""},
		"another address":                          {own, newSlice(fabricManager, "IPv4", "10.1.0.1"), "only hold addresses in"},
		"another one, IPv6":                        {own, newSlice(fabricManager, "IPv6", "fd01::1"), "only hold addresses in"},
		"a name":                                   {own, newSlice(fabricManager, "FQDN", "a.test"), "name no pods or nodes"},
		"a node":                                   {own, onNode, "name no pods or nodes"},
		"a pod":                                    {own, ofPod, "name no pods or nodes"},
		"one of the controller":                    {own, newSlice(controller, "IPv4", "10.0.0.1"), "no EndpointSlices but those of its fabric"},
		"another namespace":                        {other, newSlice(fabricManager, "IPv4", "10.0.0.1"), elsewhere},
		"kube-system":                              {"kube-system", newSlice(fabricManager, "IPv4", "10.0.0.1"), elsewhere},
	} {
		_, err := client.DiscoveryV1().EndpointSlices(one.namespace).Create(t.Context(), one.slice, dryRunCreate)
		checkOutcome(t, what, err, one.words)
	}
	slices := client.DiscoveryV1().EndpointSlices(own)
	if _, err := slices.Create(t.Context(), newSlice(fabricManager, "IPv4", "10.0.0.1"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	away := []byte(`{"endpoints": [{"addresses": ["10.1.0.1"]}]}`)
	_, err := slices.Patch(t.Context(), "restricted", types.MergePatchType, away, metav1.PatchOptions{})
	checkOutcome(t, "a change", err, "only hold addresses in")
}

// foreignSlicesAreProtected: the fabric must not change EndpointSlices of the remote cluster's controller.
func foreignSlicesAreProtected(t *testing.T, client, admin kubernetes.Interface, own string) {
	theirs := newSlice("endpointslice-controller.k8s.io", "IPv4", "10.9.0.1")
	theirs.Name = "theirs"
	if _, err := admin.DiscoveryV1().EndpointSlices(own).Create(t.Context(), theirs, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	slices := client.DiscoveryV1().EndpointSlices(own)
	taken := []byte(`{"metadata": {"labels": {"endpointslice.kubernetes.io/managed-by": "fabric.storage.liqo.io"}}, "endpoints": []}`)
	_, err := slices.Patch(t.Context(), "theirs", types.MergePatchType, taken, metav1.PatchOptions{})
	checkOutcome(t, "take one over", err, "no EndpointSlices but those of its fabric")
	err = slices.Delete(t.Context(), "theirs", metav1.DeleteOptions{})
	checkOutcome(t, "delete one", err, "no EndpointSlices but those of its fabric")
}

// slicesAreRepaired: the fabric can repair and delete a copy that has lost its label, but not an EndpointSlice that was
// created by hand.
func slicesAreRepaired(t *testing.T, client, admin kubernetes.Interface, own string) {
	const words = "no EndpointSlices but those of its fabric"
	slices, theirs := client.DiscoveryV1().EndpointSlices(own), admin.DiscoveryV1().EndpointSlices(own)
	copied := newSlice(fabricManager, "IPv4", "10.0.0.1")
	copied.Name, copied.Annotations = "copied", map[string]string{fabricManager + "/home-object-uid": "a"}
	if _, err := slices.Create(t.Context(), copied, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	unlabel := func() {
		t.Helper()
		off := []byte(`{"metadata": {"labels": {"endpointslice.kubernetes.io/managed-by": null}}}`)
		if _, err := theirs.Patch(t.Context(), "copied", types.MergePatchType, off, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	byHand := newSlice(fabricManager, "IPv4", "10.0.0.1")
	byHand.Name = "by-hand"
	delete(byHand.Labels, discoveryv1.LabelManagedBy)
	if _, err := theirs.Create(t.Context(), byHand, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	on := []byte(`{"metadata": {"labels": {"endpointslice.kubernetes.io/managed-by": "fabric.storage.liqo.io"}}}`)
	_, err := slices.Patch(t.Context(), "by-hand", types.MergePatchType, on, metav1.PatchOptions{})
	checkOutcome(t, "take over what was made by hand", err, words)
	checkOutcome(t, "delete what was made by hand", slices.Delete(t.Context(), "by-hand", metav1.DeleteOptions{}), words)
	unlabel()
	without := []byte(`{"endpoints": []}`)
	_, err = slices.Patch(t.Context(), "copied", types.MergePatchType, without, metav1.PatchOptions{})
	checkOutcome(t, "a change that leaves it without its label", err, words)
	_, err = slices.Patch(t.Context(), "copied", types.MergePatchType, on, metav1.PatchOptions{})
	checkOutcome(t, "put it right", err, "")
	unlabel()
	if err := slices.Delete(t.Context(), "copied", metav1.DeleteOptions{}); err != nil {
		t.Error("delete a copy that has lost its label: ", err)
	}
}
