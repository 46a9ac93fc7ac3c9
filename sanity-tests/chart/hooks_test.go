package chart

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
)

const testHook = "helm.sh/hook"

// `helm test` runs the program in the driver's image, with an account that may read what the test
// checks, and neither claims nor pods of users.
func TestHelmTestChecksTheInstallation(t *testing.T) {
	objects := render(t, everything)
	pod := named[*corev1.Pod](t, objects, "liqo-csi-test")
	container := pod.Spec.Containers[0]
	if container.Image != "ghcr.io/liqo-csi/liqo-csi:0.1.0" || !slices.Equal(container.Args, []string{"doctor"}) || container.Command != nil {
		t.Errorf("it runs %s %v %v", container.Image, container.Command, container.Args)
	}
	if pod.Spec.RestartPolicy != corev1.RestartPolicyNever || len(pod.Spec.ImagePullSecrets) != 1 {
		t.Errorf("the pod is started %s, and its image pulled with %v", pod.Spec.RestartPolicy, pod.Spec.ImagePullSecrets)
	}
	may := container.SecurityContext
	if !*pod.Spec.SecurityContext.RunAsNonRoot || *may.AllowPrivilegeEscalation || !*may.ReadOnlyRootFilesystem || may.Capabilities.Drop[0] != "ALL" {
		t.Error("the container keeps privileges it does not need")
	}
	if pod.Spec.Affinity.NodeAffinity == nil {
		t.Error("it may run on a virtual node")
	}
	if name := pod.Labels["app.kubernetes.io/name"]; name == "liqo-csi" {
		t.Error("doctor takes the pod of a failed test for one of the driver that is not ready")
	}

	account := rights{pod.Spec.ServiceAccountName, objects}
	account.check(t, true,
		"list deployments.apps", "list daemonsets.apps", "list storageclasses.storage.k8s.io", "list csidrivers.storage.k8s.io",
		"get namespaces/kube-system", "list namespaces/"+StorageNamespace)
	account.check(t, false,
		"get namespaces/other", "get,list secrets", "get,list pods", "get,list persistentvolumeclaims", "list events",
		"create,update,patch,delete deployments.apps", "create,patch,delete storageclasses.storage.k8s.io")
}

// All objects of the test are hooks, created before its pod: none exists outside of the test.
func TestAllObjectsOfHelmTestAreHooks(t *testing.T) {
	found := 0
	for _, object := range render(t, everything) {
		of, err := meta.Accessor(object)
		if err != nil {
			t.Fatal(err)
		}
		marks := of.GetAnnotations()
		if !strings.HasSuffix(of.GetName(), "-test") {
			if marks[testHook] != "" {
				t.Errorf("%T %s is a hook", object, of.GetName())
			}
			continue
		}
		found++
		weight := "-1"
		if _, is := object.(*corev1.Pod); is {
			weight = "0"
		}
		if marks[testHook] != "test" || marks["helm.sh/hook-weight"] != weight ||
			marks["helm.sh/hook-delete-policy"] != "before-hook-creation,hook-succeeded" {
			t.Errorf("%T %s has the annotations %v", object, of.GetName(), marks)
		}
	}
	if found != 4 {
		t.Errorf("the test has %d objects", found)
	}
	for name, manifests := range map[string]func() ([]byte, error){
		"the plain manifests":           func() ([]byte, error) { return helm(t).Manifests(t.Context()) },
		"the rights in another cluster": func() ([]byte, error) { return helm(t).RemoteManifests(t.Context(), "fabric") },
	} {
		text, err := manifests()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), testHook) {
			t.Errorf("%s have hooks", name)
		}
	}
}
