package chart

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// workload is a Deployment or DaemonSet.
type workload struct {
	component string
	selector  *metav1.LabelSelector
	pod       corev1.PodTemplateSpec
}

// workloads returns controller, fabric and node plugin.
func workloads(t *testing.T, values Values) map[string]workload {
	t.Helper()
	found := map[string]workload{}
	for _, object := range render(t, values) {
		var one workload
		switch of := object.(type) {
		case *appsv1.Deployment:
			one = workload{selector: of.Spec.Selector, pod: of.Spec.Template}
		case *appsv1.DaemonSet:
			one = workload{selector: of.Spec.Selector, pod: of.Spec.Template}
		default:
			continue
		}
		one.component = one.pod.Labels["app.kubernetes.io/component"]
		found[one.component] = one
	}
	if len(found) != 3 {
		t.Fatalf("%d workloads instead of three", len(found))
	}
	return found
}

// with returns these values, with fabric and snapshotter.
func with(values Values) Values {
	for _, component := range []string{"controller", "fabric", "node"} {
		if values[component] == nil {
			values[component] = Values{}
		}
	}
	values["fabric"].(Values)["enabled"] = true
	values["controller"].(Values)["snapshotter"] = Values{"enabled": true}
	return values
}

func TestLogLevelAndEnvironmentReachEveryContainerOfTheDriver(t *testing.T) {
	setting := Values{"name": "RUST_BACKTRACE", "value": "1"}
	values := with(Values{"logLevel": "debug", "extraEnv": []Values{setting}, "controller": Values{"sidecarVerbosity": 5}})
	for component, of := range workloads(t, values) {
		for _, container := range of.pod.Spec.Containers {
			if strings.HasPrefix(container.Name, "csi-") {
				if !slices.Contains(container.Args, "--v=5") {
					t.Errorf("%s is run with %v", container.Name, container.Args)
				}
				continue
			}
			for name, want := range map[string]string{"RUST_LOG": "debug", "RUST_BACKTRACE": "1"} {
				at := slices.IndexFunc(container.Env, func(it corev1.EnvVar) bool { return it.Name == name })
				if at < 0 || container.Env[at].Value != want {
					t.Errorf("%s of %s is not %s: %v", name, component, want, container.Env)
				}
			}
		}
	}
}

func TestOneValueNamesTheRegistryOfAllImages(t *testing.T) {
	const registry = "registry.example.com:5000/mirror"
	for _, mover := range []string{"", "ghcr.io/some/mover:v1", "some/mover:v1"} {
		values := with(Values{"imageRegistry": registry, "mover": Values{"image": mover}})
		text, err := helm(t).Render(t.Context(), Release, Namespace, values)
		if err != nil {
			t.Fatal(err)
		}
		images := regexp.MustCompile(`(?m)(?:image: |--mover-image=)(\S+)$`).FindAllStringSubmatch(string(text), -1)
		if len(images) != 9 {
			t.Errorf("%d images: %q", len(images), images)
		}
		for _, image := range images {
			if rest, is := strings.CutPrefix(image[1], registry+"/"); !is || strings.HasPrefix(rest, "mirror/") || strings.Contains(strings.Split(rest, "/")[0], ".") {
				t.Errorf("an image is %s", image[1])
			}
		}
	}
}

// Labels of pods must not be in selectors, which are immutable.
func TestLabelsAreAddedToObjectsAndPods(t *testing.T) {
	pods := func() Values { return Values{"podLabels": Values{"team": "storage"}} }
	values := with(Values{"commonLabels": Values{"owner": "platform"}, "controller": pods(), "fabric": pods(), "node": pods()})
	for _, object := range render(t, values) {
		of, err := meta.Accessor(object)
		if err != nil {
			t.Fatal(err)
		}
		if of.GetLabels()["owner"] != "platform" && of.GetLabels() != nil {
			t.Errorf("%T %s has the labels %v", object, of.GetName(), of.GetLabels())
		}
	}
	for component, of := range workloads(t, values) {
		if of.pod.Labels["owner"] != "platform" || of.pod.Labels["team"] != "storage" {
			t.Errorf("pods of %s have the labels %v", component, of.pod.Labels)
		}
		if len(of.selector.MatchLabels) != 3 {
			t.Errorf("pods of %s are selected by %v", component, of.selector.MatchLabels)
		}
	}
	if _, err := helm(t).Render(t.Context(), Release, Namespace, Values{"commonLabels": Values{"app.kubernetes.io/name": "mine"}}); err == nil {
		t.Error("the chart's own labels can be removed")
	}
}

func TestPodSpreadIsConfigurable(t *testing.T) {
	term := Values{"topologyKey": "topology.kubernetes.io/zone", "labelSelector": Values{"matchLabels": Values{"a": "b"}}}
	settings := func() Values {
		return Values{
			"affinity":                  Values{"podAntiAffinity": Values{"requiredDuringSchedulingIgnoredDuringExecution": []Values{term}}},
			"topologySpreadConstraints": []Values{{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}},
		}
	}
	for component, of := range workloads(t, with(Values{"controller": settings(), "fabric": settings()})) {
		if of.pod.Spec.Affinity.NodeAffinity == nil {
			t.Errorf("pods of %s may run on virtual nodes", component)
		}
		if component == "node" {
			continue
		}
		apart := of.pod.Spec.Affinity.PodAntiAffinity
		if len(apart.RequiredDuringSchedulingIgnoredDuringExecution) != 1 || len(apart.PreferredDuringSchedulingIgnoredDuringExecution) != 0 {
			t.Errorf("the affinity of %s is %+v", component, apart)
		}
		if len(of.pod.Spec.TopologySpreadConstraints) != 1 {
			t.Errorf("%s has no topologySpreadConstraints", component)
		}
	}
	for component, of := range workloads(t, with(Values{})) {
		if component != "node" && len(of.pod.Spec.Affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution) != 1 {
			t.Errorf("pods of %s do not prefer different nodes", component)
		}
	}
}

// Users who may edit a namespace may not stop its pods by a move, unless an administrator allows
// it.
func TestUsersMayOnlyRead(t *testing.T) {
	in := func(values Values, role string) string {
		var in []string
		for label := range named[*rbacv1.ClusterRole](t, render(t, values), role).Labels {
			if of, is := strings.CutPrefix(label, "rbac.authorization.k8s.io/aggregate-to-"); is {
				in = append(in, of)
			}
		}
		slices.Sort(in)
		return strings.Join(in, " ")
	}
	asked := Values{"userRoles": Values{"move": []string{"admin"}}}
	for _, one := range []struct {
		values     Values
		role, want string
	}{
		{nil, "liqo-csi-view", "admin edit view"},
		{nil, "liqo-csi-move", ""},
		{nil, "liqo-csi-offload", ""},
		{asked, "liqo-csi-move", "admin"},
		{asked, "liqo-csi-offload", ""},
	} {
		if got := in(one.values, one.role); got != one.want {
			t.Errorf("%s is aggregated to %q, want %q", one.role, got, one.want)
		}
	}
	for _, rule := range named[*rbacv1.ClusterRole](t, render(t, nil), "liqo-csi-view").Rules {
		if !slices.Equal(rule.Verbs, []string{"get", "list", "watch"}) {
			t.Errorf("it allows %v", rule.Verbs)
		}
	}
}
