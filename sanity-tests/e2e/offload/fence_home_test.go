package offload

import (
	"context"
	"slices"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/clusters"
)

const serviceAccountPrefix = "system:serviceaccount:" + chart.Namespace + ":liqo-csi-"

func impersonate(t *testing.T, cluster *clusters.Cluster, name string, groups ...string) (kubernetes.Interface, dynamic.Interface) {
	t.Helper()
	config, err := cluster.Config()
	if err != nil {
		t.Fatal(err)
	}
	config = rest.CopyConfig(config)
	config.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: groups}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client, objects
}

var (
	dryRunCreate = metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	dryRunPatch  = metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}
	dryRunDelete = metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}
)

// The fabric's token grants write access to its own nodes and their pods only.
func TestFabricWritesOnlyItsNodesAndTheirPods(t *testing.T) {
	n, _ := offloadedTenant(t)
	client, objects := impersonate(t, n.Cluster, serviceAccountPrefix+"fabric")
	n.Pod("web", "", stateless)
	n.WaitReady("web")
	// A pod of a real node, such as one of the node plugin.
	local := n.podOnRealNode()
	const (
		theirs   = "pods of its own nodes only"
		noSpec   = "does not change the spec of pods"
		noMarks  = "only its own labels"
		address  = `{"status": {"podIP": "192.0.2.1", "podIPs": [{"$patch": "replace"}, {"ip": "192.0.2.1"}]}}`
		labelled = `{"metadata": {"labels": {"app": "other"}}}`
	)
	images := func(pod *corev1.Pod) string {
		return `{"spec": {"containers": [{"name": "` + pod.Spec.Containers[0].Name + `", "image": "other"}]}}`
	}
	web := n.pod("web")
	for what, one := range map[string]struct {
		pod   *corev1.Pod
		patch string
		part  []string
		words string
	}{
		"an image":                  {web, images(web), nil, noSpec},
		"a label":                   {web, labelled, nil, noMarks},
		"an owner":                  {web, `{"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "a"}]}}`, nil, noMarks},
		"another finalizer":         {web, `{"metadata": {"finalizers": ["example.test/other"]}}`, nil, noMarks},
		"its label":                 {web, `{"metadata": {"labels": {"liqo.io/shadowPod": "true"}}}`, nil, ""},
		"its annotation":            {web, `{"metadata": {"annotations": {"fabric.storage.liqo.io/remote-namespace": "` + n.Name + `"}}}`, nil, ""},
		"the status":                {web, address, []string{"status"}, ""},
		"an image on a real node":   {local, images(local), nil, theirs},
		"its label on a real node":  {local, `{"metadata": {"labels": {"liqo.io/shadowPod": "true"}}}`, nil, theirs},
		"the status on a real node": {local, address, []string{"status"}, theirs},
		"its metadata through the status on a real node": {local, labelled, []string{"status"}, theirs},
	} {
		_, err := client.CoreV1().Pods(one.pod.Namespace).Patch(t.Context(), one.pod.Name, types.StrategicMergePatchType, []byte(one.patch), dryRunPatch, one.part...)
		checkOutcome(t, what, err, one.words)
	}
	for what, one := range map[string]struct {
		err   error
		words string
	}{
		"delete its pod": {client.CoreV1().Pods(n.Name).Delete(t.Context(), "web", dryRunDelete), ""},
		"delete another": {client.CoreV1().Pods(local.Namespace).Delete(t.Context(), local.Name, dryRunDelete), theirs},
		"evict its pod":  {n.evict(client, web), ""},
		"evict another":  {n.evict(client, local), "never offloaded"},
	} {
		checkOutcome(t, what, one.err, one.words)
	}
	n.foreignNodesAreProtected(client, local.Spec.NodeName)
	n.foreignLeasesAreProtected(client, local.Spec.NodeName)
	n.foreignSpecsAreProtected(objects)
	n.DeletePod("web")
}

// podOnRealNode returns a pod of the driver that runs on a real node.
func (n tenant) podOnRealNode() (found *corev1.Pod) {
	n.t.Helper()
	n.Eventually("a pod on a real node", func(ctx context.Context) (string, error) {
		pods, err := n.Client.CoreV1().Pods(chart.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		at := slices.IndexFunc(pods.Items, func(pod corev1.Pod) bool { return pod.Spec.NodeName != "" && pod.Spec.NodeName != node })
		if at < 0 {
			return "there is none", nil
		}
		found = &pods.Items[at]
		return "", nil
	})
	return found
}

func (n tenant) evict(client kubernetes.Interface, pod *corev1.Pod) error {
	return client.PolicyV1().Evictions(pod.Namespace).Evict(n.t.Context(), &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace}, DeleteOptions: &dryRunDelete,
	})
}

func (n tenant) foreignNodesAreProtected(client kubernetes.Interface, real string) {
	const theirs, undeclared = "only nodes that it created", "only nodes of RemoteClusters"
	nodes := client.CoreV1().Nodes()
	patch := func(name, patch string, part ...string) error {
		_, err := nodes.Patch(n.t.Context(), name, types.MergePatchType, []byte(patch), dryRunPatch, part...)
		return err
	}
	create := func(labels map[string]string) error {
		_, err := nodes.Create(n.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "made", Labels: labels}}, dryRunCreate)
		return err
	}
	for what, one := range map[string]struct {
		err   error
		words string
	}{
		"a label of its node":                  {patch(node, `{"metadata": {"labels": {"tier": "core"}}}`), ""},
		"the status of its node":               {patch(node, `{"status": {"phase": "Running"}}`, "status"), ""},
		"change the owner of its node":         {patch(node, `{"metadata": {"labels": {"fabric.storage.liqo.io/cluster": "other"}}}`), theirs},
		"remove the owner of its node":         {patch(node, `{"metadata": {"labels": {"fabric.storage.liqo.io/cluster": null}}}`), theirs},
		"a label of a real node":               {patch(real, `{"metadata": {"labels": {"tier": "core"}}}`), theirs},
		"make itself the owner of a real node": {patch(real, `{"metadata": {"labels": {"fabric.storage.liqo.io/cluster": "`+name+`"}}}`), theirs},
		"the status of real node":              {patch(real, `{"status": {"addresses": null}}`, "status"), theirs},
		"delete a real node":                   {nodes.Delete(n.t.Context(), real, dryRunDelete), theirs},
		"a node that nobody declared":          {create(map[string]string{"fabric.storage.liqo.io/cluster": "other"}), undeclared},
		"a node without owner":                 {create(nil), theirs},
		"the machine of its node":              {patch(node, `{"spec": {"providerID": "e2e://other"}}`), "in the spec of its nodes"},
		"an annotation of a network plugin":    {patch(node, `{"metadata": {"annotations": {"example.test/public-ip": "192.0.2.1"}}}`), "its own annotations of its nodes"},
		"its node without taints":              {patch(node, `{"spec": {"taints": null}}`), "virtual-node.liqo.io/not-allowed"},
	} {
		checkOutcome(n.t, what, one.err, one.words)
	}
}

// Kubernetes evicts the pods of a node by its lease, and the controller and sidecars choose leaders by theirs.
func (n tenant) foreignLeasesAreProtected(client kubernetes.Interface, real string) {
	const nodes, theirs = "kube-node-lease", "its own lease and those of its nodes"
	patch := func(namespace, name string) error {
		_, err := client.CoordinationV1().Leases(namespace).Patch(n.t.Context(), name, types.MergePatchType, []byte(`{"spec": {"leaseDurationSeconds": 40}}`), dryRunPatch)
		return err
	}
	create := func(labels map[string]string) error {
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "made", Labels: labels}}
		_, err := client.CoordinationV1().Leases(nodes).Create(n.t.Context(), lease, dryRunCreate)
		return err
	}
	for what, one := range map[string]struct {
		err   error
		words string
	}{
		"the lease of its node":       {patch(nodes, node), ""},
		"the lease of a real node":    {patch(nodes, real), theirs},
		"a lease without owner":       {create(nil), theirs},
		"the lease of no node":        {create(map[string]string{"fabric.storage.liqo.io/cluster": "other"}), theirs},
		"the lease of its replicas":   {patch(chart.Namespace, "storage-liqo-io-fabric"), ""},
		"the lease of the controller": {patch(chart.Namespace, "storage-liqo-io-reconcilers"), "cannot patch"},
	} {
		checkOutcome(n.t, what, one.err, one.words)
	}
}

func (n tenant) foreignSpecsAreProtected(objects dynamic.Interface) {
	const theirs = "only its finalizers and the status"
	patch := func(kind schema.GroupVersionResource, namespace, name, patch string) error {
		_, err := objects.Resource(kind).Namespace(namespace).Patch(n.t.Context(), name, types.MergePatchType, []byte(patch), dryRunPatch)
		return err
	}
	for what, one := range map[string]struct {
		err   error
		words string
	}{
		"a cluster's labels":       {patch(clustersOf, "", name, `{"spec": {"fabric": {"labels": {"region": "asia"}}}}`), theirs},
		"a cluster's finalizers":   {patch(clustersOf, "", name, `{"metadata": {"finalizers": ["example.test/other"]}}`), theirs},
		"an offloading's strategy": {patch(offloadings, n.Name, "offloading", `{"spec": {"podOffloadingStrategy": "Remote"}}`), theirs},
		"an offloading's marks":    {patch(offloadings, n.Name, "offloading", `{"metadata": {"annotations": {"e2e/test": "a"}}}`), theirs},
		"an offloading's release":  {patch(offloadings, n.Name, "offloading", `{"metadata": {"finalizers": null}}`), ""},
	} {
		checkOutcome(n.t, what, one.err, one.words)
	}
}

// The Secrets of an offloaded namespace are copied, and the driver's own must not be.
func TestNamespacesOfTheDriverAreNeverOffloaded(t *testing.T) {
	n := newTenant(t)
	for _, namespace := range []string{"kube-system", chart.Namespace, "liqo-storage"} {
		_, err := n.program("offload", "namespace", namespace)
		checkOutcome(t, namespace, err, "never offloaded")
		found, err := n.Client.CoreV1().Namespaces().Get(t.Context(), namespace, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, is := found.Labels["liqo.io/scheduling-enabled"]; is {
			t.Errorf("%s is labelled: %v", namespace, found.Labels)
		}
	}
}
