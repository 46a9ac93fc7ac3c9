package offload

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/e2e/user"
)

// tenant is a namespace in the home cluster that is offloaded.
type tenant struct {
	*user.Namespace
	t *testing.T
}

func newTenant(t *testing.T) tenant {
	t.Helper()
	t.Parallel()
	return newExclusiveTenant(t)
}

// newExclusiveTenant is for tests that cannot run in parallel with others.
func newExclusiveTenant(t *testing.T) tenant {
	t.Helper()
	prepare(t)
	return tenant{user.NewNamespace(t, user.Cluster(t, "home")), t}
}

// program runs the program against the home cluster.
func (n tenant) program(args ...string) (string, error) {
	return run(n.t.Context(), append(args, "--kubeconfig", n.Cluster.Kubeconfig())...)
}

var timeout = fmt.Sprintf("%.0fs", user.Timeout.Seconds())

func (n tenant) offload(args ...string) string {
	n.t.Helper()
	out, err := n.program(append([]string{"offload", "namespace", n.Name, "--timeout", timeout}, args...)...)
	if err != nil {
		n.t.Fatal(err)
	}
	return out
}

func (n tenant) unoffload() {
	n.t.Helper()
	if _, err := n.program("unoffload", "namespace", n.Name, "--force", "--timeout", timeout); err != nil {
		n.t.Error(err)
	}
}

func (n tenant) offloading() (object *unstructured.Unstructured) {
	n.t.Helper()
	n.Eventually("the NamespaceOffloading to be readable", func(ctx context.Context) (missing string, err error) {
		object, err = n.readOffloading(ctx)
		return "", err
	})
	return object
}

func (n tenant) readOffloading(ctx context.Context) (*unstructured.Unstructured, error) {
	all, err := dynamicClient(n.Cluster)
	if err != nil {
		return nil, err
	}
	return all.Resource(offloadings).Namespace(n.Name).Get(ctx, "offloading", metav1.GetOptions{})
}

func (n tenant) waitCondition(kind, reason string, words ...string) {
	n.t.Helper()
	n.Eventually(kind+" to be "+reason, func(ctx context.Context) (string, error) {
		object, err := n.readOffloading(ctx)
		if err != nil {
			return "", err
		}
		found, message := condition(object, kind)
		for _, word := range words {
			if !strings.Contains(message, word) {
				return fmt.Sprintf("%s with the message %q", found, message), nil
			}
		}
		if found != reason {
			return fmt.Sprintf("it is %s: %s", found, message), nil
		}
		return "", nil
	})
}

// remote returns a namespace of the remote cluster, or nil.
func (n tenant) remote(namespace string) (found *corev1.Namespace) {
	n.t.Helper()
	n.Eventually("the remote cluster to be reachable", func(ctx context.Context) (missing string, err error) {
		found, err = readRemote(ctx, user.Cluster(n.t, "remote"), namespace)
		return "", err
	})
	return found
}

func (n tenant) waitRemoteDeleted(namespace string) {
	n.t.Helper()
	n.Eventually("the remote namespace to be deleted", func(ctx context.Context) (string, error) {
		found, err := readRemote(ctx, user.Cluster(n.t, "remote"), namespace)
		if err != nil || found == nil {
			return "", err
		}
		return fmt.Sprintf("it still exists: %v", found.Status.Conditions), nil
	})
}

func readRemote(ctx context.Context, remote *clusters.Cluster, namespace string) (*corev1.Namespace, error) {
	client, err := remote.Client()
	if err != nil {
		return nil, err
	}
	found, err := client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return found, nil
}

func onVirtualNode(pod *corev1.Pod) {
	pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	// Pods that tolerate everything stay in the home cluster unless they tolerate this taint by its key.
	pod.Spec.Tolerations = []corev1.Toleration{virtualNodeToleration}
}

func TestNamespaceIsOffloadedWithEachStrategy(t *testing.T) {
	t.Parallel()
	for strategy, want := range map[string]func(name string) string{
		"DefaultName":     func(name string) string { return name + "-" },
		"EnforceSameName": func(name string) string { return name },
		"SelectedName":    func(name string) string { return "chosen-" + name },
	} {
		t.Run(strategy, func(t *testing.T) {
			n := newTenant(t)
			args := []string{"--namespace-mapping-strategy", strategy}
			if strategy == "SelectedName" {
				args = append(args, "--remote-namespace-name", want(n.Name))
			}
			out := n.offload(args...)
			n.waitCondition("OffloadingRequired", "ClusterSelected")
			n.waitCondition("Ready", "NamespaceCreated")
			created, _, _ := unstructured.NestedString(n.offloading().Object, "status", "remoteNamespaceName")
			if !strings.HasPrefix(created, want(n.Name)) || (strategy != "DefaultName" && created != want(n.Name)) {
				t.Errorf("the remote namespace is named %q", created)
			}
			if !strings.Contains(out, created) || n.remote(created) == nil {
				t.Errorf("the remote namespace %q does not exist, or the output does not name it: %s", created, out)
			}
			n.unoffload()
			if n.remote(created) != nil {
				t.Error("the remote namespace still exists")
			}
		})
	}
}

func TestClaimOfOffloadedNamespaceHasARemoteTwin(t *testing.T) {
	n := newTenant(t)
	n.Claim("data", "liqo-reference", "64Mi")
	n.Pod("user", "data", onVirtualNode)
	n.WaitEvent("data", n.Name+" is not offloaded to the cluster "+name)
	n.offload("--namespace-mapping-strategy", "SelectedName", "--remote-namespace-name", "twin-"+n.Name)
	n.WaitReady("user")
	remote := user.ExistingNamespace(t, user.Cluster(t, "remote"), "twin-"+n.Name)
	if _, err := remote.Client.CoreV1().PersistentVolumeClaims(remote.Name).Get(t.Context(), "data", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}

	// The claim blocks unoffloading by the command and by kubectl.
	_, err := n.program("unoffload", "namespace", n.Name)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(err.Error(), n.Name+"/data") {
		t.Errorf("unoffloading is not refused because of the volume: %v", err)
	}
	if n.offloading().GetDeletionTimestamp() != nil {
		user.Violated(t, "the refused unoffloading has begun")
	}
	if _, err := n.Kubectl("delete", "namespaceoffloading", "offloading", "--wait=false"); err != nil {
		t.Fatal(err)
	}
	n.waitCondition("Ready", "Terminating", "data")
	n.DeletePod("user")
	if _, err := n.Kubectl("delete", "pvc", "data"); err != nil {
		t.Fatal(err)
	}
	n.waitRemoteDeleted(remote.Name)
}

func TestForeignClaimBlocksDeletionOfTheNamespace(t *testing.T) {
	n := newTenant(t)
	n.offload("--namespace-mapping-strategy", "EnforceSameName")
	remote := user.ExistingNamespace(t, user.Cluster(t, "remote"), n.Name)
	remote.Claim("theirs", "reference", "64Mi")
	// When the command times out it prints the status, which has the reason by then.
	if _, err := n.Kubectl("delete", "namespaceoffloading", "offloading", "--wait=false"); err != nil {
		t.Fatal(err)
	}
	n.waitCondition("Ready", "Terminating", "theirs (not a twin)")
	if _, err := n.program("unoffload", "namespace", n.Name, "--timeout", "1s"); err == nil || !strings.Contains(err.Error(), "theirs (not a twin)") {
		t.Errorf("a claim of others does not block the deletion: %v", err)
	}
	if n.remote(n.Name).DeletionTimestamp != nil {
		user.ViolatedNow(t, "the namespace is deleted with the claim")
	}
	if _, err := remote.Kubectl("delete", "pvc", "theirs"); err != nil {
		t.Fatal(err)
	}
	n.waitRemoteDeleted(n.Name)
}

func TestForeignNamespaceIsRefused(t *testing.T) {
	n := newTenant(t)
	user.NewNamespaceNamed(t, user.Cluster(t, "remote"), n.Name)
	// Until the driver has reconciled the object, the command can only report that. Run again, it
	// reports the reason.
	ask := func() error {
		_, err := n.program("offload", "namespace", n.Name, "--namespace-mapping-strategy", "EnforceSameName", "--timeout", "20s")
		return err
	}
	if err := ask(); err == nil {
		t.Error("it is not refused")
	}
	n.waitCondition("Ready", "CreationLoopBackOff", n.Name)
	if err := ask(); err == nil || !strings.Contains(err.Error(), "which this driver did not create") {
		t.Errorf("it is not refused: %v", err)
	}
	if out, err := n.program("doctor"); err == nil || !strings.Contains(out, n.Name+"/offloading") || !strings.Contains(out, "cannot be created in the cluster "+name) {
		t.Errorf("doctor does not report it: %v: %s", err, out)
	}
	n.unoffload()
	if n.remote(n.Name) == nil {
		user.Violated(t, "a foreign namespace was deleted")
	}
}

// The manifests are from Liqo's documentation and from `liqoctl offload namespace -o yaml`.
func TestManifestsOfLiqoWorkUnchanged(t *testing.T) {
	t.Parallel()
	for what, one := range map[string]struct{ spec, required string }{
		"liqoctl": {`
  clusterSelector:
    nodeSelectorTerms: []
  namespaceMappingStrategy: DefaultName
  podOffloadingStrategy: LocalAndRemote
  remoteNamespaceName: ""
status: {}`, "ClusterSelected"},
		"selected": {`
  namespaceMappingStrategy: EnforceSameName
  podOffloadingStrategy: Remote
  clusterSelector:
    nodeSelectorTerms:
    - matchExpressions:
      - key: region
        operator: In
        values: [europe]`, "ClusterSelected"},
		"other region": {`
  clusterSelector:
    nodeSelectorTerms:
    - matchExpressions:
      - key: region
        operator: In
        values: [us-west]`, "ClusterNotSelected"},
	} {
		t.Run(what, func(t *testing.T) {
			n := newTenant(t)
			n.Apply("apiVersion: offloading.liqo.io/v1beta1\nkind: NamespaceOffloading\nmetadata:\n  name: offloading\nspec:" + one.spec + "\n")
			n.waitCondition("OffloadingRequired", one.required)
			if out, err := n.Kubectl("get", "nso"); err != nil || !strings.Contains(out, "NAMESPACEMAPPINGSTRATEGY") {
				t.Errorf("its short name or columns are not Liqo's: %v: %s", err, out)
			}
			n.unoffload()
		})
	}
}

func TestInvalidOffloadingsAreRefused(t *testing.T) {
	n := newTenant(t)
	manifest := func(name, spec string) string {
		return "apiVersion: offloading.liqo.io/v1beta1\nkind: NamespaceOffloading\nmetadata: {name: " + name + "}\nspec: " + spec + "\n"
	}
	for what, one := range map[string]struct{ manifest, words string }{
		"another name":        {manifest("other", "{}"), "the name of a NamespaceOffloading is offloading"},
		"no name":             {manifest("offloading", "{namespaceMappingStrategy: SelectedName}"), "needs a remoteNamespaceName"},
		"an empty term":       {manifest("offloading", "{clusterSelector: {nodeSelectorTerms: [{}]}}"), "an empty term selects nothing"},
		"an unknown operator": {manifest("offloading", "{clusterSelector: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Like}]}]}}"), "Unsupported value"},
	} {
		if err := n.TryApply(one.manifest); err == nil || !strings.Contains(err.Error(), one.words) {
			t.Errorf("%s: %v", what, err)
		}
	}
	n.offload()
	patch := `{"spec":{"namespaceMappingStrategy":"EnforceSameName"}}`
	if out, err := n.Kubectl("patch", "nso", "offloading", "--type=merge", "-p", patch); err == nil || !strings.Contains(out, "cannot be changed") {
		t.Errorf("the name can be changed: %v: %s", err, out)
	}
	n.unoffload()
}

func TestManifestIsPrintedOffline(t *testing.T) {
	text, err := run(t.Context(), "offload", "ns", "shop", "--output", "yaml", "-l", "region in (europe,us-west), !staging")
	if err != nil {
		t.Fatal(err)
	}
	object, err := decode(text)
	if err != nil {
		t.Fatal(err)
	}
	terms, _, err := unstructured.NestedSlice(object.Object, "spec", "clusterSelector", "nodeSelectorTerms")
	if err != nil || len(terms) != 1 || object.GetNamespace() != "shop" || object.GetName() != "offloading" {
		t.Errorf("%v: %s", err, text)
	}
}

func decode(text string) (*unstructured.Unstructured, error) {
	object := &unstructured.Unstructured{}
	return object, yaml.Unmarshal([]byte(text), &object.Object)
}
