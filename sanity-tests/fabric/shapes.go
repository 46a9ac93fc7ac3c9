package fabric

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

// Plain returns a virtual node without a specific fabric. Like most, it has a label that keeps
// DaemonSets off.
func Plain(node string) Options {
	return Options{Node: node, Labels: map[string]string{"type": "virtual-kubelet"}}
}

// Liqo returns a virtual node as Liqo 1.2 creates it: pkg/virtualKubelet/liqoNodeProvider (setup.go,
// utils.go) and pkg/consts of liqotech/liqo.
func Liqo(node, clusterID string) Options {
	yes := strconv.FormatBool(true)
	return Options{
		Node: node,
		Labels: map[string]string{
			"type":                           "virtual-kubelet",
			"liqo.io/type":                   "virtual-node",
			"liqo.io/remote-cluster-id":      clusterID,
			"storage.liqo.io/available":      yes,
			corev1.LabelNodeExcludeBalancers: yes,
			"alpha.service-controller.kubernetes.io/exclude-balancer": yes,
		},
		Taints: []corev1.Taint{{Key: "virtual-node.liqo.io/not-allowed", Value: yes, Effect: corev1.TaintEffectNoExecute}},
	}
}

// Kosmos returns the virtual node of a whole cluster (one2cluster) as Kosmos creates it: constants in
// pkg/utils/constants.go, the Node in pkg/utils/node.go (BuildNodeTemplate), its name in
// pkg/clustertree/cluster-manager/utils/leaf_model_handler.go of kosmos-io/kosmos.
func Kosmos(cluster string) Options {
	yes := strconv.FormatBool(true)
	return Options{
		Node:          "kosmos-" + cluster,
		Labels:        map[string]string{"kosmos.io/node": yes, "beta.kubernetes.io/os": "linux"},
		Annotations:   map[string]string{"kosmos-io/owned-by-cluster": cluster, "leafNodeMode": "one2cluster"},
		Taints:        []corev1.Taint{{Key: "kosmos.io/node", Value: yes, Effect: corev1.TaintEffectNoSchedule}},
		KosmosCluster: cluster,
	}
}

// KosmosNode returns the virtual node of one node of a cluster (leaf model one-to-one) as Kosmos
// creates it: it has the name of that node.
func KosmosNode(cluster, node string) Options {
	o := Kosmos(cluster)
	o.Node, o.RemoteNode = node, node
	delete(o.Annotations, "leafNodeMode")
	return o
}
