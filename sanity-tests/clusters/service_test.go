package clusters

import (
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
)

func TestServiceRelayUsesAReadyPod(t *testing.T) {
	yes, no, port := true, false, int32(9443)
	at := func(address string, ready *bool) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: ready}}
	}
	slice := func(endpoints ...discoveryv1.Endpoint) discoveryv1.EndpointSlice {
		return discoveryv1.EndpointSlice{Endpoints: endpoints, Ports: []discoveryv1.EndpointPort{{Port: &port}}}
	}
	for name, one := range map[string]struct {
		slices []discoveryv1.EndpointSlice
		want   string
	}{
		"none":         {nil, ""},
		"not ready":    {[]discoveryv1.EndpointSlice{slice(at("10.0.0.1", &no))}, ""},
		"ready":        {[]discoveryv1.EndpointSlice{slice(at("10.0.0.1", &no), at("10.0.0.2", &yes))}, "10.0.0.2:9443"},
		"no condition": {[]discoveryv1.EndpointSlice{slice(), slice(at("10.0.0.3", nil))}, "10.0.0.3:9443"},
	} {
		if got, found := endpointOf(one.slices); got != one.want || found != (one.want != "") {
			t.Errorf("%s: %q, %v", name, got, found)
		}
	}
}
