package nodeconformance

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/external"
	"storage.liqo.io/sanity-tests/machine"
)

// offloaded is the label of namespaces whose NamespaceOffloading is Ready.
const offloaded = "e2e-offloaded"

// policies are policies of the home cluster in addition to those of the driver. The suite starts a
// spec when its namespace has a service account, so one policy refuses that until the namespace is
// offloaded. Some pods name a node from the suite's list, which are never virtual: they get the
// virtual node instead.
const policies = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: e2e-offloaded-first}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [serviceaccounts]}]
  validations: [{expression: "false", message: the namespace is not offloaded yet}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: e2e-offloaded-first}
spec:
  policyName: e2e-offloaded-first
  validationActions: [Deny]
  matchResources:
    namespaceSelector:
      matchExpressions: [{key: ` + external.NamespaceLabel + `, operator: Exists}, {key: ` + offloaded + `, operator: DoesNotExist}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: e2e-on-virtual-node}
spec:
  reinvocationPolicy: IfNeeded
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
  mutations:
    - patchType: JSONPatch
      jsonPatch:
        expression: >-
          [JSONPatch{op: "add", path: "/spec/nodeSelector", value: {"kubernetes.io/hostname": "` + node + `"}}] +
          (has(object.spec.nodeName) ? [JSONPatch{op: "remove", path: "/spec/nodeName"}] : []) +
          (object.spec.?affinity.?nodeAffinity.?requiredDuringSchedulingIgnoredDuringExecution.?nodeSelectorTerms.orValue([])
          .exists(t, has(t.matchFields)) ? [JSONPatch{op: "remove", path: "/spec/affinity/nodeAffinity"}] : [])
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: e2e-on-virtual-node}
spec:
  policyName: e2e-on-virtual-node
  matchResources: {namespaceSelector: {matchExpressions: [{key: ` + external.NamespaceLabel + `, operator: Exists}]}}
`

var offloadings = schema.GroupVersionResource{Group: "offloading.liqo.io", Version: "v1beta1", Resource: "namespaceoffloadings"}

// offloader offloads namespaces of the suite when they are created, and records the nodes of their
// pods.
type offloader struct {
	client   kubernetes.Interface
	wishes   dynamic.NamespaceableResourceInterface
	stop     context.CancelFunc
	finished sync.WaitGroup

	mutex sync.Mutex
	// ready are the offloaded namespaces, pods the nodes of pods by uid.
	ready map[string]bool
	pods  map[types.UID]placed
	// trouble has the errors, each once.
	trouble map[string]bool
}

type placed struct{ namespace, name, node string }

// offloadAll offloads the suite's namespaces until the test ends.
func offloadAll(t *testing.T, home *clusters.Cluster) *offloader {
	t.Helper()
	client, err := home.Client()
	if err != nil {
		t.Fatal(err)
	}
	config, err := home.Config()
	if err != nil {
		t.Fatal(err)
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	o := &offloader{
		client: client, wishes: objects.Resource(offloadings),
		ready: map[string]bool{}, pods: map[types.UID]placed{}, trouble: map[string]bool{},
	}
	setPolicies(t, home, client)
	ctx, stop := context.WithCancel(t.Context())
	o.stop = stop
	t.Cleanup(o.end)
	o.finished.Go(func() { o.offload(ctx) })
	o.finished.Go(func() { o.note("the watch of pods", o.watch(ctx)) })
	return o
}

func (o *offloader) end() {
	o.stop()
	o.finished.Wait()
}

// setPolicies creates the policies, and waits until the API server enforces the first.
func setPolicies(t *testing.T, home *clusters.Cluster, client kubernetes.Interface) {
	t.Helper()
	kubectl := func(ctx context.Context, args ...string) error {
		command := exec.CommandContext(ctx, home.Kubectl(), args...)
		command.Stdin = strings.NewReader(policies)
		if out, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out)
		}
		return nil
	}
	t.Cleanup(func() { report(t, kubectl(user.CleanupContext(t), "delete", "--ignore-not-found", "-f", "-")) })
	if err := kubectl(t.Context(), "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	probe := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "e2e-probe-", Labels: map[string]string{external.NamespaceLabel: "probe"},
	}}
	probe, err := client.CoreV1().Namespaces().Create(t.Context(), probe, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		report(t, client.CoreV1().Namespaces().Delete(t.Context(), probe.Name, metav1.DeleteOptions{}))
	}()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{GenerateName: "probe-"}}
	err = machine.Until(t.Context(), "the policies to count", func() error {
		_, err := client.CoreV1().ServiceAccounts(probe.Name).Create(t.Context(), account, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		switch {
		case err == nil:
			return errors.New("a service account is admitted")
		case strings.Contains(err.Error(), "not offloaded yet"):
			return nil
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (o *offloader) note(what string, err error) {
	if err == nil || errors.Is(err, context.Canceled) {
		return
	}
	o.mutex.Lock()
	defer o.mutex.Unlock()
	o.trouble[what+": "+err.Error()] = true
}

func (o *offloader) offload(ctx context.Context) {
	every := time.NewTicker(100 * time.Millisecond)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
		found, err := o.client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: external.NamespaceLabel + ",!" + offloaded})
		if err != nil {
			o.note("list the namespaces", err)
			continue
		}
		for _, namespace := range found.Items {
			if namespace.DeletionTimestamp == nil {
				o.note("offload "+namespace.Name, o.offloadOne(ctx, namespace.Name))
			}
		}
	}
}

// offloadOne does the next step for a namespace; it ignores one that is being deleted.
func (o *offloader) offloadOne(ctx context.Context, namespace string) error {
	wish, err := o.wishes.Namespace(namespace).Get(ctx, "offloading", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		wish = &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": offloadings.GroupVersion().String(), "kind": "NamespaceOffloading",
			"metadata": map[string]any{"name": "offloading"},
			"spec":     map[string]any{"namespaceMappingStrategy": "EnforceSameName", "podOffloadingStrategy": "Remote"},
		}}
		_, err = o.wishes.Namespace(namespace).Create(ctx, wish, metav1.CreateOptions{})
		if apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil
		}
		return err
	}
	if err != nil {
		return err
	}
	if phase, _, _ := unstructured.NestedString(wish.Object, "status", "offloadingPhase"); phase != "Ready" {
		return nil
	}
	label := []byte(`{"metadata":{"labels":{"` + offloaded + `":"true"}}}`)
	_, err = o.client.CoreV1().Namespaces().Patch(ctx, namespace, types.MergePatchType, label, metav1.PatchOptions{})
	if err == nil {
		o.mutex.Lock()
		defer o.mutex.Unlock()
		o.ready[namespace] = true
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (o *offloader) watch(ctx context.Context) error {
	pods := o.client.CoreV1().Pods(metav1.NamespaceAll)
	before, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	return user.Watch(ctx, before.ResourceVersion, pods.Watch, func(event watch.Event) {
		if pod, is := event.Object.(*corev1.Pod); is && pod.Spec.NodeName != "" {
			o.mutex.Lock()
			defer o.mutex.Unlock()
			o.pods[pod.UID] = placed{pod.Namespace, pod.Name, pod.Spec.NodeName}
		}
	})
}

// checkPlacement stops the offloader, and reports where pods of the suite ran.
func (o *offloader) checkPlacement(t *testing.T) {
	t.Helper()
	o.end()
	there := 0
	var elsewhere []string
	for _, pod := range o.pods {
		switch {
		case !o.ready[pod.namespace]:
		case pod.node == node:
			there++
		default:
			elsewhere = append(elsewhere, fmt.Sprintf("%s/%s on %s", pod.namespace, pod.name, pod.node))
		}
	}
	t.Logf("%d namespaces were offloaded, with %d pods on the virtual node", len(o.ready), there)
	if there == 0 {
		t.Error("no pod was on the virtual node")
	}
	if len(elsewhere) > 0 {
		slices.Sort(elsewhere)
		t.Errorf("not on the virtual node:\n  %s", strings.Join(elsewhere, "\n  "))
	}
	for what := range o.trouble {
		t.Log("while namespaces were offloaded: " + what)
	}
}
