package remote

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/rand"

	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
)

// The API server refuses contradictory specs.
func TestContradictoryRemoteClustersAreRefused(t *testing.T) {
	t.Parallel()
	ensureShared(t)
	all, err := remoteClusters(user.Cluster(t, "home"))
	if err != nil {
		t.Fatal(err)
	}
	selects := func(key, operator string, values ...any) map[string]any {
		expression := map[string]any{"key": key, "operator": operator, "values": values}
		return map[string]any{"matchExpressions": []any{expression}}
	}
	long := strings.Repeat("a", 64)
	for name, c := range map[string]struct {
		object string
		fields spec
		why    string
	}{
		"whole":                     {"dry", spec{}, ""},
		"no nodes chosen":           {"dry", spec{"nodeSelector": map[string]any{}}, "an empty selector would select every node"},
		"In without values":         {"dry", spec{"nodeSelector": selects("a", "In")}, "In and NotIn need values"},
		"Exists with values":        {"dry", spec{"nodeSelector": selects("a", "Exists", "b")}, "In and NotIn need values"},
		"unknown operator":          {"dry", spec{"nodeSelector": selects("a", "Gt", "1")}, "Unsupported value"},
		"no namespace mapped":       {"dry", mappedNamespaces(nil), "needs a mapping"},
		"no name of a namespace":    {"dry", mappedNamespaces(map[string]any{"shop": "No"}), "spec.namespaces.mapping"},
		"unknown policy":            {"dry", spec{"bindingPolicy": "Sometimes"}, "Unsupported value"},
		"a name that is too long":   {long, spec{}, "at most 63 characters"},
		"no Secret":                 {"dry", spec{"kubeconfigSecretRef": nil}, "kubeconfigSecretRef"},
		"no name of a remote class": {"dry", spec{"storageClasses": map[string]any{"default": ""}}, "storageClasses.default"},
	} {
		t.Run(name, func(t *testing.T) {
			fields := map[string]any{
				"kubeconfigSecretRef": map[string]any{"name": "dry"},
				"nodeSelector":        map[string]any{"matchLabels": map[string]any{"dry": "run"}},
			}
			for key, value := range c.fields {
				fields[key] = value
			}
			object := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "storage.liqo.io/v1alpha1", "kind": "RemoteCluster",
				"metadata": map[string]any{"name": c.object}, "spec": fields,
			}}
			_, err := all.Create(t.Context(), object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			switch {
			case c.why == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.why != "" && (err == nil || !strings.Contains(err.Error(), c.why)):
				t.Errorf("the API server returns %v, want %q", err, c.why)
			}
		})
	}
}

// The RemoteCluster sets class mapping, binding policy and whether twins have finalizers.
func TestSpecOfARemoteClusterAppliesToVolumes(t *testing.T) {
	own, mapped := "own-"+rand.String(6), "mapped-"+rand.String(6)
	p := newDedicatedPair(t, spec{
		"bindingPolicy": "WaitForBound",
		"protectTwins":  false,
		"storageClasses": map[string]any{
			"default": "reference",
			"mapping": map[string]any{mapped: "reference-immediate"},
		},
	})
	for _, name := range []string{own, mapped} {
		class := &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: driver.CSIName, VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer),
		}
		if name == mapped { // the class mapping of the cluster takes precedence
			class.Parameters = map[string]string{"realStorageClass": "reference"}
		}
		p.home.Class(class)
	}
	removeFault := p.addFault(createUnavailable)
	p.home.Claim("own", own, "64Mi")
	p.home.Claim("mapped", mapped, "64Mi")
	p.home.Pod("user", "own", p.onVirtualNode, withClaim("mapped"))
	p.waitCreateCalls(2)
	for _, claim := range []string{"own", "mapped"} {
		p.wantPending(claim)
	}
	removeFault()
	p.home.WaitReady("user")
	for claim, class := range map[string]string{"own": "reference", "mapped": "reference-immediate"} {
		twin := p.waitVolume(claim).Twin
		if *twin.Spec.StorageClassName != class {
			t.Errorf("the twin of %s is of class %s, want %s", claim, *twin.Spec.StorageClassName, class)
		}
		for _, finalizer := range twin.Finalizers {
			if strings.HasPrefix(finalizer, "storage.liqo.io/") {
				t.Errorf("the twin of %s has the finalizer %s", claim, finalizer)
			}
		}
	}
}

// The driver does not touch claims of others: one that exists only in the remote cluster, and one at home of
// another class.
func TestClaimsOfOthersAreUnchanged(t *testing.T) {
	p := newPair(t)
	p.remote.Claim("only-remote", "reference", "64Mi")
	p.home.Claim("library", "reference", "64Mi", func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.StorageClassName, claim.Spec.VolumeName = new(string), p.home.Name+"-library"
	})
	p.remote.Claim("library", "reference", "64Mi")
	p.home.Pod("user", "only-remote", p.pinned, withClaim("library"))
	p.home.WaitReady("user")
	p.remote.Exec("user", "echo there > /data/file")

	for _, claim := range []*corev1.PersistentVolumeClaim{
		p.remote.GetClaim("only-remote"), p.remote.GetClaim("library"), p.home.GetClaim("library"),
	} {
		if mark := findMark(claim); mark != "" {
			t.Errorf("claim %s has %s", claim.Name, mark)
		}
	}
	p.wantPending("library")
}

// findMark returns a label, annotation or finalizer of the driver.
func findMark(claim *corev1.PersistentVolumeClaim) string {
	for _, marks := range []map[string]string{claim.Labels, claim.Annotations} {
		for key := range marks {
			if strings.Contains(key, "storage.liqo.io/") {
				return key
			}
		}
	}
	for _, finalizer := range claim.Finalizers {
		if strings.Contains(finalizer, "storage.liqo.io/") {
			return finalizer
		}
	}
	return ""
}
