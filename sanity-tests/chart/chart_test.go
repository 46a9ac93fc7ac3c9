package chart

import (
	"bytes"
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/client-go/kubernetes/scheme"
)

func TestLint(t *testing.T) {
	if err := helm(t).Lint(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestManifestsAreRenderedFromTheChart(t *testing.T) {
	h := helm(t)
	rendered, err := h.Manifests(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	kept, err := os.ReadFile(h.ManifestsFile())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(rendered, kept) {
		t.Errorf("%s is not what the chart renders: run make chart-manifests", filepath.Base(h.ManifestsFile()))
	}
}

// everything enables all that the chart can render.
var everything = Values{
	"clusterID":                 "home",
	"imagePullSecrets":          []Values{{"name": "registry"}},
	"allowedRealStorageClasses": []string{"fast", "slow"},
	"carriedAnnotations":        []string{"cost-center", "backup.example.com/*"},
	"csiDriver":                 Values{"tokenRequests": []Values{{"audience": "sts.example.com", "expirationSeconds": 3600}}},
	"liqo":                      Values{"tenantNamespaces": []string{"liqo-tenant-rome", "liqo-tenant-milan"}},
	"controller": Values{
		"allowProxy":   true,
		"snapshotter":  Values{"enabled": true},
		"provisioner":  Values{"featureGates": Values{"Topology": true}, "extraArgs": []string{"--v=5"}},
		"extraArgs":    []string{"--lease-namespace=other"},
		"nodeSelector": Values{"disk": "fast"}, "podAnnotations": Values{"a": "b"},
	},
	"node":          Values{"secretNamespaces": []string{"ceph", "nfs"}, "nodeSelector": Values{"disk": "fast"}, "podAnnotations": Values{"a": "b"}},
	"networkPolicy": Values{"metricsFrom": []Values{{"namespaceSelector": Values{"matchLabels": Values{"team": "metrics"}}}}},
	"storageClasses": []Values{
		{
			"name": "liqo", "default": true, "realStorageClass": "fast", "reclaimPolicy": "Retain",
			"volumeBindingMode": "Immediate", "allowVolumeExpansion": true, "mountOptions": []string{"noatime"},
			"annotations": Values{"team": "storage"},
			"allowedTopologies": []Values{{"matchLabelExpressions": []Values{
				{"key": "topology.storage.liqo.io/cluster", "values": []string{"home"}},
			}}},
		},
		{"name": "liqo-slow", "realStorageClass": "slow", "fsType": "", "allowVolumeExpansion": false},
		{"name": "liqo-waiting", "remoteBindingPolicy": "WaitForBound"},
		{"name": "liqo-shared", "allowSharedNamespace": true},
		{"name": "liqo-zonal", "restoreTopology": "source"},
	},
}

func TestEveryObjectIsValidAndLabelled(t *testing.T) {
	for name, values := range map[string]Values{
		"defaults": nil, "everything": everything,
		"remote, full": remote("full"), "remote, namespaced": remote("namespaced", "apps"), "remote, minimal": remote("minimal", "apps"),
	} {
		t.Run(name, func(t *testing.T) {
			for _, object := range render(t, values) {
				accessor := object.(interface {
					GetName() string
					GetLabels() map[string]string
				})
				if accessor.GetName() == "" || accessor.GetLabels()["app.kubernetes.io/instance"] != Release {
					t.Errorf("%T %q does not have the release's labels", object, accessor.GetName())
				}
			}
		})
	}
}

func TestNamespaceOfTwinsIsNotPartOfTheRelease(t *testing.T) {
	for _, object := range render(t, everything) {
		if namespace, is := object.(*corev1.Namespace); is {
			t.Errorf("the release contains the namespace %s: an uninstall would delete the data", namespace.Name)
		}
	}
}

func TestControllerIsUnprivilegedAndReplicated(t *testing.T) {
	deployment := only[*appsv1.Deployment](t, render(t, everything))
	if *deployment.Spec.Replicas < 2 {
		t.Errorf("%d replica", *deployment.Spec.Replicas)
	}
	pod := deployment.Spec.Template.Spec
	if user := pod.SecurityContext; user.RunAsNonRoot == nil || !*user.RunAsNonRoot {
		t.Error("the controller's pod may run as root")
	}
	for _, container := range pod.Containers {
		may := container.SecurityContext
		if may == nil || *may.AllowPrivilegeEscalation || !*may.ReadOnlyRootFilesystem || may.Capabilities.Drop[0] != "ALL" {
			t.Errorf("container %s keeps privileges it does not need", container.Name)
		}
	}
	if names := containerNames(pod); names != "driver csi-provisioner csi-attacher csi-resizer csi-snapshotter" {
		t.Errorf("containers: %s", names)
	}
	if names := containerNames(only[*appsv1.Deployment](t, render(t, nil)).Spec.Template.Spec); names != "driver csi-provisioner csi-attacher csi-resizer" {
		t.Errorf("containers with default values: %s", names)
	}
}

// A real driver that refuses an expansion because of a snapshot does so with and without pods.
func TestExpansionDoesNotWaitForPodsToEnd(t *testing.T) {
	for _, container := range only[*appsv1.Deployment](t, render(t, nil)).Spec.Template.Spec.Containers {
		if container.Name == "csi-resizer" && !slices.Contains(container.Args, "--handle-volume-inuse-error=false") {
			t.Errorf("csi-resizer is run with %v", container.Args)
		}
	}
}

func TestSnapshotterRunsWhereSnapshotKindsExist(t *testing.T) {
	for name, one := range map[string]struct {
		enabled     any
		apiVersions string
		serves      bool
	}{
		"auto":    {"auto", "snapshot.storage.k8s.io/v1", true},
		"missing": {"auto", "snapshot.storage.k8s.io/v1beta1", false},
		"forced":  {true, "v1", true},
		"off":     {false, "snapshot.storage.k8s.io/v1", false},
	} {
		t.Run(name, func(t *testing.T) {
			values := Values{"controller": Values{"snapshotter": Values{"enabled": one.enabled}}}
			text, err := helm(t).RenderFor(t.Context(), Release, Namespace, one.apiVersions, values)
			if err != nil {
				t.Fatal(err)
			}
			pod := only[*appsv1.Deployment](t, decode(t, text)).Spec.Template.Spec
			if strings.Contains(containerNames(pod), "csi-snapshotter") != one.serves {
				t.Errorf("containers: %s", containerNames(pod))
			}
			if bytes.Contains(text, []byte("name: liqo-csi-snapshotter")) != one.serves {
				t.Error("the role of csi-snapshotter is rendered without the container, or the container without the role")
			}
		})
	}
}

// The driver publishes capacity itself, because csi-provisioner would also publish it for nodes of
// other clusters, from home.
func TestCapacityIsNotPublishedTwice(t *testing.T) {
	for _, container := range only[*appsv1.Deployment](t, render(t, everything)).Spec.Template.Spec.Containers {
		for _, argument := range container.Args {
			if strings.Contains(argument, "capacity") {
				t.Errorf("%s has %s", container.Name, argument)
			}
		}
	}
}

func TestChartKeepsDriverPodsOffVirtualNodes(t *testing.T) {
	objects := render(t, nil)
	for name, pod := range map[string]corev1.PodSpec{
		"controller": only[*appsv1.Deployment](t, objects).Spec.Template.Spec,
		"node":       only[*appsv1.DaemonSet](t, objects).Spec.Template.Spec,
	} {
		terms := pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
		if len(terms) != 1 || len(terms[0].MatchExpressions) != 6 {
			t.Fatalf("%s: virtual nodes are not excluded: %v", name, terms)
		}
		if system := terms[0].MatchExpressions[0]; system.Key != "kubernetes.io/os" || !slices.Equal(system.Values, []string{"linux"}) {
			t.Errorf("%s: nodes of other systems are not excluded: %v", name, system)
		}
		ours := terms[0].MatchExpressions[1]
		if ours.Key != "storage.liqo.io/virtual-node" || ours.Operator != corev1.NodeSelectorOpDoesNotExist {
			t.Errorf("%s: nodes that the driver marks as virtual are not excluded: %v", name, ours)
		}
	}
}

func TestNodePluginMountsKubeletPathsUnchanged(t *testing.T) {
	const root = "/var/lib/k0s/kubelet"
	daemonSet := only[*appsv1.DaemonSet](t, render(t, Values{"kubeletRoot": root}))
	containers := daemonSet.Spec.Template.Spec.Containers
	if len(containers) != 1 {
		t.Fatalf("%d containers instead of one", len(containers))
	}
	for _, mount := range containers[0].VolumeMounts {
		if mount.Name == "kubelet" && mount.MountPath == root && *mount.MountPropagation == corev1.MountPropagationBidirectional {
			return
		}
	}
	t.Errorf("kubelet's root is not mounted at its own path: %v", containers[0].VolumeMounts)
}

func TestClassParameters(t *testing.T) {
	classes := map[string]*storagev1.StorageClass{}
	for _, object := range render(t, everything) {
		if class, is := object.(*storagev1.StorageClass); is {
			classes[class.Name] = class
		}
	}
	if got := classes["liqo"].Annotations["storageclass.kubernetes.io/is-default-class"]; got != "true" {
		t.Errorf("liqo is not the default class: %q", got)
	}
	slow := classes["liqo-slow"]
	if len(slow.Parameters) != 1 || slow.Parameters["realStorageClass"] != "slow" {
		t.Errorf("parameters of liqo-slow: %v", slow.Parameters)
	}
	waiting := classes["liqo-waiting"]
	if len(waiting.Parameters) != 1 || waiting.Parameters["remoteBindingPolicy"] != "WaitForBound" {
		t.Errorf("parameters of liqo-waiting: %v", waiting.Parameters)
	}
	shared := classes["liqo-shared"]
	if len(shared.Parameters) != 1 || shared.Parameters["allowSharedNamespace"] != "true" {
		t.Errorf("parameters of liqo-shared: %v", shared.Parameters)
	}
	zonal := classes["liqo-zonal"]
	if len(zonal.Parameters) != 1 || zonal.Parameters["restoreTopology"] != "source" {
		t.Errorf("parameters of liqo-zonal: %v", zonal.Parameters)
	}
	if *slow.VolumeBindingMode != storagev1.VolumeBindingWaitForFirstConsumer {
		t.Errorf("binding mode of liqo-slow: %s", *slow.VolumeBindingMode)
	}
}

// The value of a class takes precedence. Without one, expansion is allowed if there is a resizer.
func TestExpansionIsAllowedWhereAResizerRuns(t *testing.T) {
	silent := Values{"storageClasses": []Values{{"name": "silent"}}}
	if of := only[*storagev1.StorageClass](t, render(t, silent)); !*of.AllowVolumeExpansion {
		t.Error("a class without allowVolumeExpansion does not allow expansion")
	}
	if of := only[*storagev1.StorageClass](t, render(t, withoutResizer(silent))); *of.AllowVolumeExpansion {
		t.Error("a class without allowVolumeExpansion allows expansion although no resizer runs")
	}
	if of := only[*storagev1.StorageClass](t, render(t, nil)); !*of.AllowVolumeExpansion {
		t.Error("the class of the default values does not allow expansion")
	}
	for _, object := range render(t, everything) {
		if class, is := object.(*storagev1.StorageClass); is && *class.AllowVolumeExpansion != (class.Name != "liqo-slow") {
			t.Errorf("expansion of %s: %t", class.Name, *class.AllowVolumeExpansion)
		}
	}
}

// withoutResizer adds to the values that no csi-resizer runs.
func withoutResizer(values Values) Values {
	values = maps.Clone(values)
	values["controller"] = Values{"resizer": Values{"enabled": false}}
	return values
}

func TestInvalidValuesAreRefused(t *testing.T) {
	class := func(more Values) Values {
		class := Values{"name": "liqo"}
		for key, value := range more {
			class[key] = value
		}
		return Values{"storageClasses": []Values{class}}
	}
	for name, refused := range map[string]struct {
		values Values
		says   string
	}{
		"unknown binding policy": {class(Values{"remoteBindingPolicy": "Pessimistic"}), "remoteBindingPolicy"},
		"tenant of no name":      {Values{"liqo": Values{"tenantNamespaces": []string{"Rome!"}}}, "tenantNamespaces"},
		"unknown remote level":   {remote("some"), "level"},
		"remote nowhere":         {remote("minimal"), "set remoteAccess.namespaces"},
		"remote in all and one":  {remote("full", "apps"), "level full is for all namespaces"},
		"remote fabric and one":  {remote("fabric", "apps"), "level fabric is for all namespaces"},
		"metrics among streams":  {fabricPorts(9820, 16), "fabric.metricsPort 9828 is among the ports of virtual nodes, 9820 to 9835"},
		"metrics of a sidecar":   {Values{"controller": Values{"metricsPort": 9810}}, "controller.metricsPort 9810 is a port of the sidecars"},
		"too many streams":       {fabricPorts(65530, 16), "end beyond 65535"},
		"remote account nowhere": {Values{"remoteAccess": Values{"only": true, "subjects": []Values{{"kind": "ServiceAccount", "name": "a"}}}},
			"needs a namespace"},
		"unknown value":               {Values{"storageClass": "liqo"}, "storageClass"},
		"wrong type":                  {Values{"controller": Values{"replicas": "two"}}, "replicas"},
		"unknown fsGroupPolicy":       {Values{"csiDriver": Values{"fsGroupPolicy": "Always"}}, "fsGroupPolicy"},
		"default of itself":           {class(Values{"default": true}), "would be its own real class"},
		"real class of this driver":   {class(Values{"realStorageClass": "liqo"}), "is a class of this driver itself"},
		"expansion without a resizer": {withoutResizer(class(Values{"allowVolumeExpansion": true})), "controller.resizer.enabled"},
		"values of an older chart":    {Values{"prometheusRule": nil}, "--reset-then-reuse-values"},
		"two of one name":             {Values{"storageClasses": []Values{{"name": "a"}, {"name": "a"}}}, "twice"},
		"pods beside the twins":       {Values{"storageNamespace": Namespace}, "namespace without pods"},
		"kubelet root with slash":     {Values{"kubeletRoot": "/var/lib/kubelet/"}, "kubeletRoot"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := helm(t).Render(t.Context(), Release, Namespace, refused.values)
			if err == nil || !strings.Contains(err.Error(), refused.says) {
				t.Errorf("want an error that contains %q, got %v", refused.says, err)
			}
		})
	}
}

// Each rule has a comment with its purpose.
func TestEveryRuleOfRBACHasAComment(t *testing.T) {
	for _, file := range []string{"rbac-controller.yaml", "rbac-node.yaml", "remote-access.yaml", "user-roles.yaml", "tests/installation.yaml"} {
		text, err := os.ReadFile(filepath.Join(helm(t).chart, "templates", file))
		if err != nil {
			t.Fatal(err)
		}
		explained := false
		for number, line := range strings.Split(string(text), "\n") {
			switch line = strings.TrimSpace(line); {
			case strings.HasPrefix(line, "#"):
				explained = true
			case strings.HasPrefix(line, "- apiGroups:"):
				if !explained {
					t.Errorf("%s:%d: this rule has no comment", file, number+1)
				}
				explained = false
			case line == "rules:":
				explained = false
			}
		}
	}
}

func helm(t *testing.T) *Helm {
	t.Helper()
	h, err := New(context.WithoutCancel(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// render decodes the rendered manifests strictly: a field that its kind does not have is an error.
func render(t *testing.T, values Values) []runtime.Object {
	t.Helper()
	rendered, err := helm(t).Render(t.Context(), Release, Namespace, values)
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, rendered)
}

func decode(t *testing.T, rendered []byte) []runtime.Object {
	t.Helper()
	decoder := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme,
		json.SerializerOptions{Yaml: true, Strict: true})
	var objects []runtime.Object
	for document := range strings.SplitSeq(string(rendered), "\n---\n") {
		// The client does not have the type of a CustomResourceDefinition.
		if !strings.Contains(document, "\nkind: ") || strings.Contains(document, "\nkind: CustomResourceDefinition\n") {
			continue
		}
		object, _, err := decoder.Decode([]byte(document), nil, nil)
		if err != nil {
			t.Fatalf("%v\n%s", err, document)
		}
		objects = append(objects, object)
	}
	return objects
}

func only[T runtime.Object](t *testing.T, objects []runtime.Object) T {
	t.Helper()
	var found []T
	for _, object := range objects {
		if one, is := object.(T); is {
			found = append(found, one)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d objects of type %T", len(found), *new(T))
	}
	return found[0]
}

func containerNames(pod corev1.PodSpec) string {
	names := make([]string, 0, len(pod.Containers))
	for _, container := range pod.Containers {
		names = append(names, container.Name)
	}
	return strings.Join(names, " ")
}

// fabricPorts returns values of a fabric with this number of ports for virtual nodes, from the
// first on.
func fabricPorts(first, count int) Values {
	return Values{"fabric": Values{"enabled": true, "streams": Values{"port": first, "ports": count}}}
}
