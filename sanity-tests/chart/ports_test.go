package chart

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
)

// The ports of virtual nodes are ports of the container.
func TestEachVirtualNodeHasAPort(t *testing.T) {
	settings := Values{"enabled": true, "streams": Values{"port": 9000, "ports": 3}}
	deployment := named[*appsv1.Deployment](t, render(t, Values{"fabric": settings}), "liqo-csi-fabric")
	container := deployment.Spec.Template.Spec.Containers[0]
	for _, arg := range []string{"--streams-address=[::]:9000", "--streams-ports=3"} {
		if !slices.Contains(container.Args, arg) {
			t.Errorf("%s is missing in %v", arg, container.Args)
		}
	}
	var ports []int32
	for _, port := range container.Ports {
		if strings.HasPrefix(port.Name, "streams-") {
			ports = append(ports, port.ContainerPort)
		}
	}
	if !slices.Equal(ports, []int32{9000, 9001, 9002}) {
		t.Errorf("the ports are %v", ports)
	}
}
