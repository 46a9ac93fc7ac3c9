package offload

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"storage.liqo.io/sanity-tests/e2e/user"
)

// placement is where the pods of a NamespaceOffloading can be scheduled.
type placement struct {
	strategy string
	terms    []corev1.NodeSelectorTerm
	// refusing are selected clusters in which the namespace cannot be created.
	refusing []string
}

const (
	typeLabel    = "liqo.io/type"
	clusterLabel = "liqo.io/remote-cluster-id"
	taintKey     = "virtual-node.liqo.io/not-allowed"
)

var virtualNodeToleration = corev1.Toleration{Key: taintKey, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}

// testNodes has a node for each case that the policies distinguish.
var testNodes = []*corev1.Node{
	newTestNode("home-europe", "", "europe"), newTestNode("home-asia", "", "asia"), newTestNode("home-nowhere", "", ""),
	newTestNode("virtual-europe", "milan", "europe"), newTestNode("virtual-asia", "tokyo", "asia"), newTestNode("virtual-nowhere", "zion", ""),
	newTestNode("virtual-refusing", name, "europe"),
}

func newTestNode(called, cluster, region string) *corev1.Node {
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: called, Labels: map[string]string{corev1.LabelHostname: called}}}
	if region != "" {
		object.Labels["region"] = region
	}
	if cluster != "" {
		object.Labels[typeLabel], object.Labels[clusterLabel] = "virtual-node", cluster
		object.Spec.Taints = []corev1.Taint{{Key: taintKey, Value: "true", Effect: corev1.TaintEffectNoExecute}}
	}
	return object
}

// podVariant is a value of one dimension. Each dimension is combined with all others.
type podVariant struct {
	name string
	edit func(*corev1.Pod)
}

func term(requirements ...corev1.NodeSelectorRequirement) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchExpressions: requirements}
}

func requirement(key string, operator corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: key, Operator: operator, Values: values}
}

func required(terms ...corev1.NodeSelectorTerm) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
		}}
	}
}

func withTolerations(all ...corev1.Toleration) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.Tolerations = all }
}

var affinities = []podVariant{
	{"no affinity", func(*corev1.Pod) {}},
	{"a pod affinity", func(pod *corev1.Pod) {
		pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
			}},
		}}
	}},
	{"a preferred node", func(pod *corev1.Pod) {
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
				Weight: 1, Preference: term(requirement("region", corev1.NodeSelectorOpIn, "asia")),
			}},
		}}
	}},
	{"one term", required(term(requirement("region", corev1.NodeSelectorOpIn, "europe")))},
	{"two terms", required(
		term(requirement("region", corev1.NodeSelectorOpDoesNotExist)),
		term(requirement("region", corev1.NodeSelectorOpIn, "asia"), requirement(typeLabel, corev1.NodeSelectorOpNotIn, "other")))},
	{"a named node", required(corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{
		requirement(metav1.ObjectNameField, corev1.NodeSelectorOpIn, "virtual-europe")}})},
	{"a term that no node meets", required(corev1.NodeSelectorTerm{})},
	{"one of these", required(corev1.NodeSelectorTerm{}, term(requirement("region", corev1.NodeSelectorOpExists)))},
	{"a node selector", func(pod *corev1.Pod) { pod.Spec.NodeSelector = map[string]string{"region": "europe"} }},
}

var tolerations = []podVariant{
	{"no toleration", func(*corev1.Pod) {}},
	{"another toleration", withTolerations(corev1.Toleration{Key: "gpu", Operator: corev1.TolerationOpExists})},
	{"a toleration of everything", withTolerations(corev1.Toleration{Operator: corev1.TolerationOpExists})},
	{"a toleration of every NoExecute", withTolerations(corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute})},
	{"a toleration of every NoSchedule", withTolerations(corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule})},
	{"our toleration", withTolerations(virtualNodeToleration)},
	{"our toleration by value", withTolerations(corev1.Toleration{Key: taintKey, Value: "true", Effect: corev1.TaintEffectNoExecute})},
}

func withVolume(source corev1.VolumeSource) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Volumes = []corev1.Volume{{Name: "more", VolumeSource: source}}
	}
}

var podKinds = []podVariant{
	{"plain", func(*corev1.Pod) {}},
	{"by class", func(pod *corev1.Pod) { pod.Spec.RuntimeClassName = new("liqo") }},
	{"by class with hostPID", func(pod *corev1.Pod) { pod.Spec.RuntimeClassName = new("liqo"); pod.Spec.HostPID = true }},
	{"mirror", func(pod *corev1.Pod) {
		pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
		pod.Spec.NodeName = "home-europe"
	}},
	{"of a DaemonSet", ownedBy("DaemonSet")},
	{"of a ReplicaSet", ownedBy("ReplicaSet")},
	{"hostNetwork", func(pod *corev1.Pod) { pod.Spec.HostNetwork = true }},
	{"hostIPC", func(pod *corev1.Pod) { pod.Spec.HostIPC = true }},
	{"hostPath", withVolume(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/tmp"}})},
	{"ephemeral", withVolume(corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
		VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")}},
		}},
	}})},
	{"flexVolume", withVolume(corev1.VolumeSource{FlexVolume: &corev1.FlexVolumeSource{Driver: "example.test/driver"}})},
	{"resourceClaims", func(pod *corev1.Pod) {
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("gpu")}}
	}},
	{"a token of its own", withProjectedVolume(corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}})},
	{"the token of Kubernetes", func(pod *corev1.Pod) { pod.Spec.AutomountServiceAccountToken = nil }},
	{"privileged", func(pod *corev1.Pod) {
		pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
	}},
	{"a privileged init container", func(pod *corev1.Pod) {
		pod.Spec.InitContainers = []corev1.Container{{
			Name: "first", Image: "busybox", SecurityContext: &corev1.SecurityContext{Privileged: new(true)},
		}}
	}},
	{"a capability", addCapability("IPC_LOCK")},
	{"a capability of the baseline", addCapability("NET_BIND_SERVICE")},
	{"hostPort", func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80}}
	}},
	{"a sysctl", func(pod *corev1.Pod) {
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "net.core.somaxconn", Value: "1024"}}}
	}},
	{"a projected volume", withProjectedVolume(corev1.VolumeProjection{DownwardAPI: &corev1.DownwardAPIProjection{}})},
}

func withProjectedVolume(source corev1.VolumeProjection) func(*corev1.Pod) {
	return withVolume(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{source}}})
}

func addCapability(capability corev1.Capability) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{
			Capabilities: &corev1.Capabilities{Add: []corev1.Capability{capability}},
		}
	}
}

func ownedBy(kind string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: "apps/v1", Kind: kind, Name: "owner", UID: "0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111", Controller: new(true),
		}}
	}
}

func newPod(name string, edits ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		AutomountServiceAccountToken: new(bool),
		Containers:                   []corev1.Container{{Name: "main", Image: "busybox"}},
	}}
	for _, edit := range edits {
		edit(pod)
	}
	return pod
}

func isNodePod(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	return pod.Annotations[corev1.MirrorPodAnnotationKey] != "" || owner != nil && owner.Kind == "DaemonSet"
}

func usesLiqoClass(pod *corev1.Pod) bool {
	return pod.Spec.RuntimeClassName != nil && *pod.Spec.RuntimeClassName == "liqo"
}

func needsHomeCluster(pod *corev1.Pod) bool {
	spec := &pod.Spec
	return spec.HostNetwork || spec.HostPID || spec.HostIPC || len(spec.ResourceClaims) > 0 ||
		slices.ContainsFunc(spec.Volumes, func(one corev1.Volume) bool {
			return one.HostPath != nil || one.Ephemeral != nil || one.FlexVolume != nil ||
				one.Projected != nil && one.Projected.Sources[0].ServiceAccountToken != nil
		})
}

// exceedsBaseline reports whether the policies of remote clusters refuse a pod.
func exceedsBaseline(pod *corev1.Pod) bool {
	return pod.Spec.SecurityContext != nil && len(pod.Spec.SecurityContext.Sysctls) > 0 ||
		slices.ContainsFunc(slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers), func(one corev1.Container) bool {
			may := one.SecurityContext
			return len(one.Ports) > 0 && one.Ports[0].HostPort != 0 || may != nil && (may.Privileged != nil && *may.Privileged ||
				may.Capabilities != nil && may.Capabilities.Add[0] == "IPC_LOCK")
		})
}

// canSchedule reports whether the affinity and tolerations of a pod match a node.
func canSchedule(t *testing.T, pod *corev1.Pod, node *corev1.Node) bool {
	t.Helper()
	matches, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
	if err != nil {
		t.Error(err)
	}
	for _, taint := range node.Spec.Taints {
		tolerated := slices.ContainsFunc(pod.Spec.Tolerations, func(one corev1.Toleration) bool {
			return (one.Effect == "" || one.Effect == taint.Effect) && (one.Key == "" || one.Key == taint.Key) &&
				(one.Operator == corev1.TolerationOpExists || one.Value == taint.Value)
		})
		matches = matches && tolerated
	}
	return matches
}

// refuses reports whether the policies refuse a pod because it can be scheduled on no node.
func (w placement) refuses(pod *corev1.Pod) bool {
	return !isNodePod(pod) && needsHomeCluster(pod) && (w.strategy == "Remote" || usesLiqoClass(pod))
}

// allows reports whether a pod should be able to run on a node, according to the documentation.
func (w placement) allows(t *testing.T, pod *corev1.Pod, node *corev1.Node) bool {
	t.Helper()
	// Without taints: whether the pod's own selectors match the node.
	open := node.DeepCopy()
	open.Spec.Taints = nil
	isVirtual := node.Labels[typeLabel] == "virtual-node"
	wanted := canSchedule(t, pod, open)
	selected := len(w.terms) == 0
	for _, one := range w.terms {
		selected = selected || canSchedule(t, newPod("selector", required(one)), open)
	}
	selected = selected && !slices.Contains(w.refusing, node.Labels[clusterLabel])
	switch {
	case isNodePod(pod):
		return canSchedule(t, pod, node)
	case usesLiqoClass(pod):
		return wanted && isVirtual && selected
	case w.strategy == "Remote":
		return wanted && isVirtual && selected
	case w.strategy == "LocalAndRemote":
		return wanted && (!isVirtual || selected && !needsHomeCluster(pod) && !exceedsBaseline(pod))
	default:
		return wanted && !isVirtual
	}
}

// check creates pods of all variants and compares on which nodes they can be scheduled.
func (w placement) check(t *testing.T, create func(*corev1.Pod) (*corev1.Pod, error)) {
	t.Helper()
	var all sync.WaitGroup
	defer all.Wait()
	for _, affinity := range affinities {
		for _, toleration := range tolerations {
			all.Go(func() {
				for _, kind := range podKinds {
					what := strings.Join([]string{kind.name, affinity.name, toleration.name}, ", ")
					requested := newPod("candidate", affinity.edit, toleration.edit, kind.edit)
					created, err := create(requested.DeepCopy())
					if mismatch := w.mismatch(t, requested, created, err); mismatch != "" {
						t.Errorf("%s: %s", what, mismatch)
					}
				}
			})
		}
	}
}

func (w placement) mismatch(t *testing.T, requested, created *corev1.Pod, err error) string {
	t.Helper()
	if w.refuses(requested) {
		return mismatch(err, "the pod can run in this cluster only")
	}
	if err != nil {
		return fmt.Sprint("it is refused: ", err)
	}
	for _, node := range testNodes {
		if may := canSchedule(t, created, node); may != w.allows(t, requested, node) {
			return fmt.Sprintf("%sit may run on %s: %t: %v %v", user.Violation, node.Name, may, created.Spec.Tolerations, created.Spec.Affinity)
		}
	}
	kept := func(one corev1.Toleration) bool { return slices.Contains(created.Spec.Tolerations, one) }
	for _, one := range requested.Spec.Tolerations {
		// Kubernetes drops tolerations that those of the RuntimeClass cover.
		if !kept(one) && !usesLiqoClass(requested) {
			return fmt.Sprintf("its own toleration %v was removed: %v", one, created.Spec.Tolerations)
		}
	}
	times := 0
	for _, one := range created.Spec.Tolerations {
		if one == virtualNodeToleration {
			times++
		}
	}
	if times > 1 {
		return fmt.Sprintf("it tolerates virtual nodes %d times", times)
	}
	if own := requested.Spec.Affinity; own != nil && own.PodAntiAffinity != nil && created.Spec.Affinity.PodAntiAffinity == nil {
		return "its pod affinity was removed"
	}
	if own := requested.Spec.Affinity; own != nil && own.NodeAffinity != nil &&
		len(own.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution) != len(created.Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution) {
		return "its preferred nodes were removed"
	}
	return ""
}

// create creates a pod as a dry run.
func (n tenant) create(pod *corev1.Pod) (*corev1.Pod, error) {
	return n.Client.CoreV1().Pods(n.Name).Create(n.t.Context(), pod, dryRunCreate)
}

// waitPolicies waits until the API server applies the policies for this placement.
func (n tenant) waitPolicies(w placement) {
	n.t.Helper()
	probe := newPod("probe", withTolerations(corev1.Toleration{Operator: corev1.TolerationOpExists}))
	n.Eventually("the policies match the namespace", func(context.Context) (string, error) {
		created, err := n.create(probe.DeepCopy())
		if err != nil {
			return "", err
		}
		return w.mismatch(n.t, probe, created, nil), nil
	})
	n.Eventually("the namespace to be labelled", func(ctx context.Context) (string, error) {
		found, err := n.Client.CoreV1().Namespaces().Get(ctx, n.Name, metav1.GetOptions{})
		if err == nil && found.Labels["liqo.io/scheduling-enabled"] != "true" {
			return fmt.Sprint("it has ", found.Labels), nil
		}
		return "", err
	})
}

func TestPodsMayRunOnlyWhereTheOffloadingAllows(t *testing.T) {
	t.Parallel()
	inEurope := term(requirement("region", corev1.NodeSelectorOpIn, "europe"))
	byName := corev1.NodeSelectorTerm{
		MatchFields:      []corev1.NodeSelectorRequirement{requirement(metav1.ObjectNameField, corev1.NodeSelectorOpIn, "virtual-asia")},
		MatchExpressions: []corev1.NodeSelectorRequirement{requirement("region", corev1.NodeSelectorOpExists)},
	}
	for _, strategy := range []string{"LocalAndRemote", "Remote", "Local"} {
		for selector, one := range map[string]struct {
			manifest string
			terms    []corev1.NodeSelectorTerm
		}{
			"all": {"[]", nil},
			// An empty list is as good as none.
			"europe":   {"[{matchExpressions: [{key: region, operator: In, values: [europe]}, {key: staging, operator: DoesNotExist, values: []}]}]", []corev1.NodeSelectorTerm{inEurope}},
			"two ways": {"[{matchExpressions: [{key: region, operator: Exists}], matchFields: [{key: metadata.name, operator: In, values: [virtual-asia]}]}, {matchExpressions: [{key: region, operator: In, values: [europe]}]}]", []corev1.NodeSelectorTerm{byName, inEurope}},
		} {
			t.Run(strategy+" "+selector, func(t *testing.T) {
				n := newTenant(t)
				n.Apply("apiVersion: offloading.liqo.io/v1beta1\nkind: NamespaceOffloading\nmetadata: {name: offloading}\nspec:\n  podOffloadingStrategy: " +
					strategy + "\n  clusterSelector: {nodeSelectorTerms: " + one.manifest + "}\n")
				w := placement{strategy: strategy, terms: one.terms}
				n.waitPolicies(w)
				w.check(t, n.create)
				n.unoffload()
			})
		}
	}
}

// A selected cluster in which another namespace has the name gets no pods.
func TestPodsAreKeptOffClustersThatRefuseTheNamespace(t *testing.T) {
	n := newTenant(t)
	user.NewNamespaceNamed(t, user.Cluster(t, "remote"), n.Name)
	if _, err := n.program("offload", "namespace", n.Name, "--namespace-mapping-strategy", "EnforceSameName", "--pod-offloading-strategy", "Remote"); err == nil {
		t.Fatal("the namespace is not refused")
	}
	w := placement{strategy: "Remote", refusing: []string{name}}
	n.waitPolicies(w)
	w.check(t, n.create)
	if _, err := n.Kubectl("patch", "nso", "offloading", "--type=merge", "-p", `{"spec": {"podOffloadingStrategy": "LocalAndRemote"}}`); err != nil {
		t.Fatal(err)
	}
	w.strategy = "LocalAndRemote"
	n.waitPolicies(w)
	w.check(t, n.create)
	n.unoffload()
}

// The next pod of a controller prefers other clusters than those without capacity, and is otherwise
// unchanged.
func TestPodsPreferClustersWithCapacity(t *testing.T) {
	n, _ := offloadedTenant(t)
	controller := string(newPod("", ownedBy("ReplicaSet")).OwnerReferences[0].UID)
	avoided := func(controller, cluster string) string {
		return fmt.Sprintf(`{"controller": %q, "cluster": %q, "since": "2026-01-01T00:00:00Z", "until": "2999-01-01T00:00:00Z"}`, controller, cluster)
	}
	all := []string{avoided(controller, "milan"), avoided(controller, "tokyo"), avoided("another", "zion")}
	if out, err := n.Kubectl("patch", "nso", "offloading", "--subresource=status", "--type=merge",
		"-p", `{"status": {"avoidedClusters": [`+strings.Join(all, ", ")+`]}}`); err != nil {
		t.Fatal(err, out)
	}
	preferences := func(pod *corev1.Pod) []corev1.PreferredSchedulingTerm {
		if pod.Spec.Affinity == nil || pod.Spec.Affinity.NodeAffinity == nil {
			return nil
		}
		return pod.Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	}
	prefers := func(cluster string) corev1.PreferredSchedulingTerm {
		return corev1.PreferredSchedulingTerm{Weight: 100, Preference: term(requirement(clusterLabel, corev1.NodeSelectorOpNotIn, cluster))}
	}
	n.Eventually("the policy has the list of clusters", func(context.Context) (string, error) {
		created, err := n.create(newPod("probe", ownedBy("ReplicaSet")))
		if err == nil && len(preferences(created)) != 2 {
			return fmt.Sprint("a pod prefers ", preferences(created)), nil
		}
		return "", err
	})
	for _, affinity := range affinities {
		for _, owner := range []struct {
			kind string
			want []corev1.PreferredSchedulingTerm
		}{
			{"ReplicaSet", []corev1.PreferredSchedulingTerm{prefers("milan"), prefers("tokyo")}},
			// The fields of a node's own pod stay as they are.
			{"DaemonSet", nil},
		} {
			requested := newPod("candidate", affinity.edit, ownedBy(owner.kind))
			created, err := n.create(requested.DeepCopy())
			if err != nil {
				t.Fatalf("%s: %v", affinity.name, err)
			}
			if got, want := preferences(created), append(preferences(requested), owner.want...); !equality.Semantic.DeepEqual(got, want) {
				t.Errorf("%s, %s: it prefers %v, not %v", owner.kind, affinity.name, got, want)
			}
		}
		created, err := n.create(newPod("candidate", affinity.edit))
		if err != nil || len(preferences(created)) != len(preferences(newPod("", affinity.edit))) {
			t.Errorf("%s: a pod without a controller prefers %v: %v", affinity.name, preferences(created), err)
		}
	}
	n.unoffload()
}

// Pods that tolerate everything stay in the home cluster if their namespace is not offloaded.
func TestTolerantPodsOfOtherNamespacesStayAtHome(t *testing.T) {
	n := newTenant(t)
	for _, toleration := range tolerations {
		for _, affinity := range affinities {
			requested := newPod("candidate", affinity.edit, toleration.edit)
			created, err := n.create(requested.DeepCopy())
			if err != nil {
				t.Fatal(err)
			}
			namesIt := slices.ContainsFunc(requested.Spec.Tolerations, func(one corev1.Toleration) bool { return one.Key == taintKey })
			for _, node := range testNodes {
				want := canSchedule(t, requested, node) && (namesIt || node.Labels[typeLabel] == "")
				if canSchedule(t, created, node) != want {
					t.Errorf("%s, %s: want that it may run on %s: %t: %v", toleration.name, affinity.name, node.Name, want, created.Spec.Affinity)
				}
			}
		}
	}
}

// A namespace that was labelled beforehand, as Liqo's documentation recommends, accepts no pods
// until it is offloaded; the refusal reports that. The fabric does not remove that label at the
// end.
func TestLabelledNamespaceWaitsUntilItIsOffloaded(t *testing.T) {
	n := newTenant(t)
	if _, err := n.Kubectl("label", "namespace", n.Name, "liqo.io/scheduling-enabled=true"); err != nil {
		t.Fatal(err)
	}
	refused := func() {
		t.Helper()
		n.Eventually("pods to be refused", func(context.Context) (string, error) {
			if _, err := n.create(newPod("early")); err == nil || !strings.Contains(err.Error(), "is not offloaded: run liqo-csi offload namespace "+n.Name) {
				return fmt.Sprint("they are not: ", err), nil
			}
			return "", nil
		})
	}
	refused()
	n.offload()
	n.waitPolicies(placement{strategy: "LocalAndRemote"})
	n.unoffload()
	refused()
}

func TestNamespaceHasTheLabelWhileItIsOffloaded(t *testing.T) {
	n := newTenant(t)
	n.offload("--pod-offloading-strategy", "Remote")
	n.waitPolicies(placement{strategy: "Remote"})
	n.unoffload()
	found, err := n.Client.CoreV1().Namespaces().Get(t.Context(), n.Name, metav1.GetOptions{})
	if err != nil || found.Labels["liqo.io/scheduling-enabled"] != "" {
		t.Errorf("the label was not removed: %v %v", err, found.Labels)
	}
	pod := newPod("plain")
	n.Eventually("pods not to be changed", func(context.Context) (string, error) {
		created, err := n.create(pod.DeepCopy())
		if err == nil && (created.Spec.Affinity != nil || slices.Contains(created.Spec.Tolerations, virtualNodeToleration)) {
			return fmt.Sprint("they have ", created.Spec.Affinity), nil
		}
		return "", err
	})
}

func TestNarrowerStrategyWarns(t *testing.T) {
	n := newTenant(t)
	n.offload()
	const words = "are not evicted"
	patch := func(strategy string) string {
		t.Helper()
		out, err := n.Kubectl("patch", "nso", "offloading", "--type=merge", "-p", `{"spec": {"podOffloadingStrategy": "`+strategy+`"}}`)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	for _, strategy := range []string{"Remote", "Local"} {
		if out := patch(strategy); !strings.Contains(out, words) {
			t.Errorf("%s: %s", strategy, out)
		}
		if out := patch(strategy); strings.Contains(out, words) {
			t.Errorf("%s again: %s", strategy, out)
		}
	}
	if out := patch("LocalAndRemote"); strings.Contains(out, words) {
		t.Errorf("LocalAndRemote: %s", out)
	}
	n.unoffload()
}

// Users see warnings when they apply templates; controllers, which create the pods, ignore them.
func TestRequiredPodAffinityWarns(t *testing.T) {
	n := newTenant(t)
	n.offload()
	n.waitPolicies(placement{strategy: "LocalAndRemote"})
	keptHere := podVariant{"a pod affinity in this cluster", func(pod *corev1.Pod) {
		required(term(requirement(typeLabel, corev1.NodeSelectorOpNotIn, "virtual-node")))(pod)
		pod.Spec.Affinity.PodAntiAffinity = newPod("", affinities[1].edit).Spec.Affinity.PodAntiAffinity
	}}
	for _, one := range append(slices.Clone(affinities), keptHere) {
		template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}, Spec: newPod("", one.edit).Spec}
		once := *template.DeepCopy()
		once.Spec.RestartPolicy = corev1.RestartPolicyNever
		selector := &metav1.LabelSelector{MatchLabels: template.Labels}
		for kind, object := range map[string]any{
			"v1/Pod":              &corev1.Pod{Spec: template.Spec},
			"apps/v1/Deployment":  &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Selector: selector, Template: template}},
			"apps/v1/ReplicaSet":  &appsv1.ReplicaSet{Spec: appsv1.ReplicaSetSpec{Selector: selector, Template: template}},
			"apps/v1/StatefulSet": &appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{Selector: selector, Template: template}},
			"batch/v1/Job":        &batchv1.Job{Spec: batchv1.JobSpec{Template: once}},
			"batch/v1/CronJob":    &batchv1.CronJob{Spec: batchv1.CronJobSpec{Schedule: "@daily", JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: once}}}},
		} {
			fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
			if err != nil {
				t.Fatal(err)
			}
			fields["apiVersion"], fields["kind"], fields["metadata"] = path.Dir(kind), path.Base(kind), map[string]any{"name": "web"}
			text, err := json.Marshal(fields)
			if err != nil {
				t.Fatal(err)
			}
			command := n.kubectl(t.Context(), false, "create", "--dry-run=server", "-f", "-")
			command.Stdin = bytes.NewReader(text)
			out, err := command.CombinedOutput()
			if want := one.name == "a pod affinity"; err != nil || strings.Contains(string(out), "require a podAntiAffinity") != want {
				t.Errorf("%s with %s: %v %s", kind, one.name, err, out)
			}
		}
	}
	n.unoffload()
}

// The strategy applies to new pods only.
func TestNarrowerStrategyEvictsNoPods(t *testing.T) {
	n, _ := offloadedTenant(t)
	n.Pod("web", "", stateless)
	before := n.WaitReady("web")
	if out, err := n.Kubectl("patch", "nso", "offloading", "--type=merge", "-p", `{"spec": {"podOffloadingStrategy": "Local"}}`); err != nil {
		t.Fatal(err, out)
	}
	n.waitPolicies(placement{strategy: "Local"})
	if now := n.pod("web"); now.UID != before.UID || now.DeletionTimestamp != nil || now.Spec.NodeName != node {
		t.Errorf("it is on %s, with the uid %s (was %s), deleted: %v", now.Spec.NodeName, now.UID, before.UID, now.DeletionTimestamp)
	}
	n.unoffload()
}

// With the largest possible selector and a pod with its own terms, the cost of the expressions is
// within the limit of the API server.
func TestLargeSelectorsAreWithinTheCostLimit(t *testing.T) {
	n := newTenant(t)
	var selector []any
	large := make([]corev1.NodeSelectorTerm, 16)
	for at := range large {
		var requirements []any
		for key := range 16 {
			label := fmt.Sprintf("label-%d-%d", at, key)
			large[at].MatchExpressions = append(large[at].MatchExpressions, requirement(label, corev1.NodeSelectorOpIn, "a", "b"))
			requirements = append(requirements, map[string]any{"key": label, "operator": "In", "values": []any{"a", "b"}})
		}
		selector = append(selector, map[string]any{"matchExpressions": requirements})
	}
	all, err := dynamicClient(n.Cluster)
	if err != nil {
		t.Fatal(err)
	}
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "offloading.liqo.io/v1beta1", "kind": "NamespaceOffloading", "metadata": map[string]any{"name": "offloading"},
		"spec": map[string]any{"clusterSelector": map[string]any{"nodeSelectorTerms": selector}},
	}}
	if _, err := all.Resource(offloadings).Namespace(n.Name).Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w := placement{strategy: "LocalAndRemote", terms: large}
	n.waitPolicies(w)
	own := []corev1.NodeSelectorTerm{
		term(requirement("region", corev1.NodeSelectorOpIn, "europe")), term(requirement("region", corev1.NodeSelectorOpIn, "asia")),
		term(requirement("region", corev1.NodeSelectorOpDoesNotExist), requirement("disk", corev1.NodeSelectorOpExists)),
	}
	requested := newPod("large", required(own...))
	created, err := n.create(requested.DeepCopy())
	if mismatch := w.mismatch(t, requested, created, err); mismatch != "" {
		t.Error(mismatch)
	}
	n.unoffload()
}

func TestFabricWritesOnlyItsLabelOfNamespaces(t *testing.T) {
	n := newTenant(t)
	as := []string{"--as", "system:serviceaccount:liqo-csi:liqo-csi-fabric"}
	n.Eventually("the fabric's rights", func(context.Context) (string, error) {
		_, err := n.Kubectl(append([]string{"label", "namespace", n.Name, "liqo.io/scheduling-enabled=true"}, as...)...)
		return "", err
	})
	for _, args := range [][]string{
		{"label", "namespace", n.Name, "pod-security.kubernetes.io/enforce=privileged"},
		{"annotate", "namespace", n.Name, "scheduler.alpha.kubernetes.io/node-selector=a=b"},
		{"annotate", "namespace", n.Name, "e2e/test-"},
	} {
		_, err := n.Kubectl(append(args, as...)...)
		checkOutcome(t, strings.Join(args, " "), err, "nothing of a namespace but the label")
	}
	if _, err := n.Kubectl(append([]string{"label", "namespace", n.Name, "liqo.io/scheduling-enabled-"}, as...)...); err != nil {
		t.Error(err)
	}
}
