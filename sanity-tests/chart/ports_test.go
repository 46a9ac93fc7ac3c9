package chart

import (
	"maps"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
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

// Nodes and clusters with IPv6 only have no 0.0.0.0.
func TestNoContainerListensOnIPv4Only(t *testing.T) {
	values := maps.Clone(everything)
	values["fabric"] = Values{"enabled": true}
	var names []string
	for _, object := range render(t, values) {
		var pod corev1.PodSpec
		switch one := object.(type) {
		case *appsv1.Deployment:
			pod = one.Spec.Template.Spec
		case *appsv1.DaemonSet:
			pod = one.Spec.Template.Spec
		case *corev1.Pod:
			pod = one.Spec
		}
		for _, container := range slices.Concat(pod.InitContainers, pod.Containers) {
			names = append(names, container.Name)
			for _, text := range slices.Concat(container.Command, container.Args) {
				if strings.Contains(text, "0.0.0.0") {
					t.Errorf("%s has %s", container.Name, text)
				}
			}
		}
	}
	for _, name := range []string{"driver", "csi-provisioner", "fabric"} {
		if !slices.Contains(names, name) {
			t.Errorf("there is no container %s in %v", name, names)
		}
	}
}
