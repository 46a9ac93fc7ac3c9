package offload

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"

	"storage.liqo.io/sanity-tests/e2e/user"
)

//go:embed testdata/fields.yaml
var podsOfAllFields string

// exception is what the remote pod has instead of the value at home, as JSON (nothing if it is
// empty), and why.
type exception struct{ there, why string }

// exceptions are the leaf fields, or leaves of named elements, that the remote pod does not have as
// they are. docs/offloading-reference.md documents them.
var exceptions = func() map[string]exception {
	all := map[string]exception{
		"automountServiceAccountToken":   {"false", "tokens of home are not valid there"},
		"nodeName":                       {"", "the scheduler there chooses the node"},
		"nodeSelector":                   {`{"kubernetes.io/os":"none"}`, "only kubernetes.io/os and kubernetes.io/arch"},
		"overhead":                       {"", "that of the RuntimeClass there"},
		"preemptionPolicy":               {`"PreemptLowerPriority"`, "that of the PriorityClass there"},
		"priority":                       {"0", "that of the PriorityClass there"},
		"priorityClassName":              {"", "pods.priorityClassName of the RemoteCluster"},
		"readinessGates[].conditionType": {"", "they are met at home"},
		"runtimeClassName":               {"", "liqo is that of home"},
		"schedulerName":                  {`"default-scheduler"`, "a scheduler there"},
		"serviceAccount":                 {`"default"`, "the account of home does not exist there"},
		"serviceAccountName":             {`"default"`, "the account of home does not exist there"},
		"terminationGracePeriodSeconds":  {"1", "at least 1"},
		"topologySpreadConstraints[].matchLabelKeys[]":  {"", "the selector has their values"},
		"topologySpreadConstraints[].minDomains":        {"", "only for DoNotSchedule"},
		"topologySpreadConstraints[].whenUnsatisfiable": {`"ScheduleAnyway"`, "they are a preference there"},
	}
	for _, field := range below([]string{"tolerations[virtual-node.liqo.io/not-allowed]"}, "key", "operator", "effect") {
		all[field] = exception{"", "that for virtual nodes"}
	}
	containers := []string{"containers[c]", "initContainers[sidecar-c]", "initContainers[init-c]", "ephemeralContainers[debug-c]"}
	for _, field := range below(containers, "env[ACCOUNT].valueFrom.fieldRef.apiVersion", "env[ACCOUNT].valueFrom.fieldRef.fieldPath") {
		all[field] = exception{"", "spec.serviceAccountName is that of home"}
	}
	for _, field := range fieldsOfAffinity() {
		all[field] = exception{"", "real nodes of the remote cluster, and a preference between pods of the namespace"}
	}
	return all
}()

// below returns these fields of each of the parents.
func below(parents []string, fields ...string) (all []string) {
	for _, parent := range parents {
		for _, field := range fields {
			all = append(all, parent+"."+field)
		}
	}
	return all
}

func fieldsOfAffinity() []string {
	requirements := below([]string{"matchExpressions[]"}, "key", "operator", "values[]")
	const required, preferred = "requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution"
	ofNodes := below([]string{required + ".nodeSelectorTerms[]", preferred + "[].preference"},
		append(below([]string{"matchFields[]"}, "key", "operator", "values[]"), requirements...)...)
	selected := append(requirements, "matchLabels")
	ofNamespaces := append(below([]string{"namespaceSelector"}, selected...), "matchLabelKeys[]", "mismatchLabelKeys[]", "namespaces[]")
	ofPods := below([]string{required + "[]", preferred + "[].podAffinityTerm"}, ofNamespaces...)
	// Required terms become preferred ones, except for those that name namespaces.
	ofPods = append(ofPods, below([]string{required + "[]"}, append(below([]string{"labelSelector"}, selected...), "topologyKey")...)...)
	ofPods = append(ofPods, below([]string{preferred + "[2]", preferred + "[3]"}, "weight", "podAffinityTerm.topologyKey")...)
	return append(below([]string{"affinity.nodeAffinity"}, append(ofNodes, preferred+"[].weight")...),
		below([]string{"affinity.podAffinity", "affinity.podAntiAffinity"}, ofPods...)...)
}

// tokenParts identify the volume of the service account token, which Kubernetes adds to pods. The fabric keeps only its
// namespace.
var tokenParts = []string{"[kube-api-access-", "[/var/run/secrets/kubernetes.io/serviceaccount]"}

// notEphemeral are fields of containers that ephemeral ones may not have.
var notEphemeral = []string{
	"lifecycle", "livenessProbe", "ports", "readinessProbe", "resizePolicy", "resources", "restartPolicy", "restartPolicyRules", "startupProbe",
}

// notSet are fields, with everything below them, that no pod sets to two values, mostly because
// there is only one.
var notSet = map[string]string{
	"affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[].preference.matchFields[].key":       "metadata.name alone",
	"affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[].matchFields[].key": "metadata.name alone",
	"containers[].env[].valueFrom.fieldRef.apiVersion":                                                           "v1 alone",
	"containers[].livenessProbe.successThreshold":                                                                "1 alone",
	"containers[].resources.claims":                                                                              "need spec.resourceClaims, which are refused",
	"containers[].securityContext.windowsOptions.hostProcess":                                                    "needs hostNetwork, which is refused",
	"containers[].readinessProbe.terminationGracePeriodSeconds":                                                  "never allowed",
	"containers[].restartPolicyRules[].action":                                                                   "one alone without further features",
	"containers[].startupProbe.successThreshold":                                                                 "1 alone",
	"ephemeralContainers[].env[].valueFrom.fieldRef.apiVersion":                                                  "v1 alone",
	"ephemeralContainers[].securityContext.privileged":                                                           "refused there like those of containers",
	"ephemeralContainers[].securityContext.procMount":                                                            "refused there like those of containers",
	"ephemeralContainers[].securityContext.seLinuxOptions.role":                                                  "refused there like those of containers",
	"ephemeralContainers[].securityContext.seLinuxOptions.user":                                                  "refused there like those of containers",
	"ephemeralContainers[].securityContext.windowsOptions.hostProcess":                                           "refused there like those of containers",
	"ephemeralContainers[].volumeMounts[].subPath":                                                               "never allowed",
	"ephemeralContainers[].volumeMounts[].subPathExpr":                                                           "never allowed",
	"initContainers[].env[].valueFrom.fieldRef.apiVersion":                                                       "v1 alone",
	"initContainers[].livenessProbe.successThreshold":                                                            "1 alone",
	"initContainers[].resources.claims":                                                                          "need spec.resourceClaims, which are refused",
	"initContainers[].securityContext.windowsOptions.hostProcess":                                                "needs hostNetwork, which is refused",
	"initContainers[].readinessProbe.terminationGracePeriodSeconds":                                              "never allowed",
	"initContainers[].restartPolicyRules[].action":                                                               "one alone without further features",
	"initContainers[].startupProbe.successThreshold":                                                             "1 alone",
	"nodeName":                                          "there is one virtual node",
	"resources.claims":                                  "never allowed",
	"schedulingGates":                                   "a pod with one has no node",
	"securityContext.seLinuxChangePolicy":               "one alone without further features",
	"securityContext.windowsOptions.hostProcess":        "needs hostNetwork, which is refused",
	"volumes[].downwardAPI.items[].fieldRef.apiVersion": "v1 alone",
	"volumes[].ephemeral":                               "refused as a whole",
	"volumes[].projected.sources[].downwardAPI.items[].fieldRef.apiVersion": "v1 alone",
}

// TestEveryFieldOfAPod sets each field of a pod's spec that the API server at home has to two values, and compares
// what the remote API server stores. A field of a newer Kubernetes fails here first.
func TestEveryFieldOfAPod(t *testing.T) {
	n, remote := renamedTenant(t)
	n.waitPolicies(placement{strategy: "LocalAndRemote"})
	n.createPrerequisites(remote)
	found := outcomes{
		fields: fieldsOfPods(t, n), values: map[string]map[string]bool{}, kinds: map[string]map[string]string{},
		wrong: map[string]string{}, used: map[string]bool{},
	}
	var created, refused []*unstructured.Unstructured
	for _, all := range readPods(t) {
		for _, pod := range found.alone(all) {
			annotations := pod.GetAnnotations()
			switch stored, err := n.createStrictly(pod); {
			case err != nil:
				t.Errorf("%s: %v", pod.GetName(), err)
			case found.isOff(pod, stored) && len(annotations) > 0:
			case len(annotations) > 0:
				refused = append(refused, pod)
			default:
				created = append(created, stored)
			}
		}
	}
	for _, pod := range refused {
		annotations := pod.GetAnnotations()
		if field := annotations["refused"]; field != "" {
			n.WaitEvent(pod.GetName(), "PodNotSupported", field)
		} else {
			n.WaitEvent(pod.GetName(), "RemoteRefused", annotations["refused-there"])
		}
		for _, one := range found.named(pod) {
			found.record(one, "refused", pod.GetName())
		}
	}
	for _, pod := range created {
		n.remoteSpec(remote, pod.GetName(), 0)
		home := n.addEphemeral(pod)
		found.compare(t, home, n.remoteSpec(remote, pod.GetName(), len(home.Spec.EphemeralContainers)))
	}
	found.check(t)
}

// createPrerequisites creates the objects that the API servers require before they admit the pods.
func (n tenant) createPrerequisites(remote *user.Namespace) {
	n.t.Helper()
	const everywhere = `
{apiVersion: storage.k8s.io/v1, kind: CSIDriver, metadata: {name: inline.example.test}, spec: {volumeLifecycleModes: [Ephemeral]}}
---
`
	for cluster, text := range map[*user.Namespace]string{
		n.Namespace: everywhere + `
{apiVersion: v1, kind: ServiceAccount, metadata: {name: fields}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: one}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: two}}
---
{apiVersion: v1, kind: Secret, metadata: {name: one}}
---
{apiVersion: v1, kind: Secret, metadata: {name: two}}
---
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: fields-never}, value: 5, preemptionPolicy: Never}
---
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: fields-lower}, value: 4}
---
{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: fields}, handler: none, overhead: {podFixed: {cpu: 1m}}}
---
{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: fields-more}, handler: none, overhead: {podFixed: {cpu: 2m}}}
`,
		// The pods are never scheduled: it is enough that these claims exist.
		remote: everywhere + `
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: one}, spec: &spec {accessModes: [ReadWriteOnce], storageClassName: "", resources: {requests: {storage: 1Mi}}}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: two}, spec: {accessModes: [ReadWriteOnce], storageClassName: "", resources: {requests: {storage: 1Mi}}}}
---
{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: fields}, handler: none}
---
{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: fields-more}, handler: none}
`,
	} {
		cluster.Apply(text)
		n.t.Cleanup(func() {
			// The fabric does not delete a namespace with claims of others.
			command := exec.CommandContext(user.CleanupContext(n.t), cluster.Cluster.Kubectl(), "-n", cluster.Name, "delete", "--ignore-not-found", "-f", "-")
			command.Stdin = strings.NewReader(text)
			if out, err := command.CombinedOutput(); err != nil {
				n.t.Errorf("delete what the pods needed: %v: %s", err, out)
			}
		})
	}
}

// createStrictly creates a pod, and fails if the API server does not know a field. The API server
// drops fields of features that are disabled.
func (n tenant) createStrictly(pod *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	n.t.Helper()
	all, err := dynamicClient(n.Cluster)
	if err != nil {
		n.t.Fatal(err)
	}
	pods := all.Resource(corev1.SchemeGroupVersion.WithResource("pods")).Namespace(n.Name)
	return pods.Create(n.t.Context(), pod, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
}

// remoteSpec waits until the fabric has accepted the remote pod and added the ephemeral containers.
func (n tenant) remoteSpec(remote *user.Namespace, name string, ephemeral int) (spec map[string]any) {
	n.t.Helper()
	n.Eventually("the remote pod of "+name, func(ctx context.Context) (string, error) {
		pod, err := remote.Client.CoreV1().Pods(remote.Name).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			here := n.pod(name)
			return fmt.Sprintf("there is none: %s: %s", here.Status.Reason, here.Status.Message), nil
		}
		if err != nil {
			return "", err
		}
		if len(pod.Spec.SchedulingGates) > 0 {
			return "it is gated", nil
		}
		if has := len(pod.Spec.EphemeralContainers); has != ephemeral {
			return fmt.Sprintf("it has %d ephemeral containers", has), nil
		}
		spec, err = asJSON(pod)
		return "", err
	})
	return spec
}

// addEphemeral adds the containers of a pod as ephemeral containers with the fields that these may have.
func (n tenant) addEphemeral(pod *unstructured.Unstructured) *corev1.Pod {
	n.t.Helper()
	containers, _, _ := unstructured.NestedSlice(pod.Object, "spec", "containers")
	for _, one := range containers {
		one := one.(map[string]any)
		one["targetContainerName"] = one["name"]
		one["name"] = fmt.Sprintf("debug-%s", one["name"])
		for _, field := range notEphemeral {
			delete(one, field)
		}
		mounts, _ := one["volumeMounts"].([]any)
		for _, mount := range mounts {
			delete(mount.(map[string]any), "subPath")
			delete(mount.(map[string]any), "subPathExpr")
		}
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"ephemeralContainers": containers}})
	if err != nil {
		n.t.Fatal(err)
	}
	pods := n.Client.CoreV1().Pods(n.Name)
	patched, err := pods.Patch(n.t.Context(), pod.GetName(), types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "ephemeralcontainers")
	if err != nil {
		n.t.Fatal(pod.GetName(), err)
	}
	return patched
}

func asJSON(pod *corev1.Pod) (spec map[string]any, err error) {
	text, err := json.Marshal(pod.Spec)
	if err != nil {
		return nil, err
	}
	return spec, json.Unmarshal(text, &spec)
}

func readPods(t *testing.T) (pods []*unstructured.Unstructured) {
	t.Helper()
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(podsOfAllFields), 4096)
	for {
		pod := &unstructured.Unstructured{}
		err := decoder.Decode(&pod.Object)
		if errors.Is(err, io.EOF) {
			return pods
		}
		if err != nil {
			t.Fatal(err)
		}
		if pod.Object == nil {
			continue
		}
		pod.SetAPIVersion("v1")
		pod.SetKind("Pod")
		spec := pod.Object["spec"].(map[string]any)
		spec["nodeName"] = node
		if len(pod.GetAnnotations()) > 0 {
			// The policies add no toleration of the taint of virtual nodes to pods that must stay
			// at home.
			spec["tolerations"] = []any{map[string]any{"operator": "Exists"}}
		}
		spec["initContainers"] = initContainers(spec["containers"].([]any))
		pods = append(pods, pod)
	}
}

// initContainers returns the containers as sidecars, and as plain init containers, which have no probes.
func initContainers(containers []any) (all []any) {
	for _, one := range containers {
		sidecar := runtime.DeepCopyJSON(one.(map[string]any))
		ends := runtime.DeepCopyJSON(sidecar)
		sidecar["name"] = fmt.Sprintf("sidecar-%s", sidecar["name"])
		sidecar["restartPolicy"] = "Always"
		delete(sidecar, "restartPolicyRules")
		ends["name"] = fmt.Sprintf("init-%s", ends["name"])
		for _, field := range []string{"livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "resizePolicy"} {
			delete(ends, field)
		}
		all = append(all, sidecar, ends)
	}
	return all
}

// openAPI is the needed part of an OpenAPI schema.
type openAPI struct {
	Ref        string             `json:"$ref"`
	AllOf      []openAPI          `json:"allOf"`
	Items      *openAPI           `json:"items"`
	Properties map[string]openAPI `json:"properties"`
}

// fieldsOfPods returns the leaf fields of a pod's spec, such as containers[].image.
func fieldsOfPods(t *testing.T, n tenant) (fields []string) {
	t.Helper()
	text, err := n.Client.Discovery().RESTClient().Get().AbsPath("/openapi/v3/api/v1").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var document struct {
		Components struct{ Schemas map[string]openAPI }
	}
	if err := json.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	var walk func(openAPI, string)
	walk = func(of openAPI, path string) {
		for _, one := range append(of.AllOf, of) {
			if name := one.Ref[strings.LastIndex(one.Ref, "/")+1:]; name != "" {
				of = document.Components.Schemas[name]
			}
		}
		switch {
		case of.Items != nil:
			walk(*of.Items, path+"[]")
		case len(of.Properties) == 0:
			fields = append(fields, path)
		default:
			for name, property := range of.Properties {
				walk(property, strings.TrimPrefix(path+"."+name, "."))
			}
		}
	}
	walk(openAPI{Ref: "io.k8s.api.core.v1.PodSpec"}, "")
	slices.Sort(fields)
	return fields
}

// leaf is a value in a spec: its field, its path and the value.
type leaf struct{ field, at, value string }

// leaves returns the values of a spec. Elements of lists are identified by their key, or by their
// index.
func leaves(value any, field, at string, fields []string) (all []leaf) {
	_, isField := slices.BinarySearch(fields, field)
	switch value := value.(type) {
	case map[string]any:
		if isField {
			break
		}
		for name, one := range value {
			all = append(all, leaves(one, strings.TrimPrefix(field+"."+name, "."), at+"."+name, fields)...)
		}
		return all
	case []any:
		for i, one := range value {
			all = append(all, leaves(one, field+"[]", fmt.Sprintf("%s[%s]", at, identity(one, i)), fields)...)
		}
		return all
	}
	text, _ := json.Marshal(value)
	return []leaf{{field, at, string(text)}}
}

func identity(element any, number int) string {
	object, _ := element.(map[string]any)
	for _, key := range []string{"mountPath", "devicePath", "name", "path", "containerPort", "ip", "topologyKey", "resourceName", "conditionType", "key"} {
		if value, has := object[key]; has {
			return fmt.Sprint(value)
		}
	}
	return fmt.Sprint(number)
}

// outcomes has, by field, the values at home and an example of each outcome.
type outcomes struct {
	fields []string
	values map[string]map[string]bool
	kinds  map[string]map[string]string
	// wrong has, by field, an example of a value that is no exception; used has the exceptions that
	// occurred.
	wrong map[string]string
	used  map[string]bool
}

func (o *outcomes) record(of leaf, outcome, example string) {
	if o.values[of.field] == nil {
		o.values[of.field], o.kinds[of.field] = map[string]bool{}, map[string]string{}
	}
	o.values[of.field][of.value] = true
	o.kinds[of.field][outcome] = example
}

// isOff reports whether the API server at home dropped fields of a pod because their feature is off.
func (o *outcomes) isOff(sent, stored *unstructured.Unstructured) (isOff bool) {
	has := map[string]bool{}
	for _, one := range leaves(stored.Object["spec"], "", "", o.fields) {
		has[one.field] = true
	}
	for _, one := range leaves(sent.Object["spec"], "", "", o.fields) {
		if !has[one.field] {
			o.record(one, "off", sent.GetName())
			isOff = true
		}
	}
	return isOff
}

// numbers matches the index of a source of a volume, which messages omit.
var numbers = regexp.MustCompile(`\.sources\[\d+\]`)

// named returns the leaves of a pod that its refusal names: those at the path in its annotations,
// or with this name.
func (o *outcomes) named(pod *unstructured.Unstructured) []leaf {
	annotations := pod.GetAnnotations()
	place := strings.TrimPrefix(cmp.Or(annotations["field"], annotations["refused"]), "spec.")
	return slices.DeleteFunc(leaves(pod.Object["spec"], "", "", o.fields), func(one leaf) bool {
		if field := annotations["refused-there"]; field != "" {
			return !slices.Contains(strings.Split(one.field, "."), field)
		}
		rest, is := strings.CutPrefix(numbers.ReplaceAllString(one.at, ".sources"), "."+strings.ReplaceAll(place, "projected.", "projected.sources."))
		return !is || rest != "" && !strings.ContainsAny(rest[:1], ".[")
	})
}

// alone returns a refused pod once for each leaf that the refusal names, without the other leaves:
// the refusal does not tell which of them is refused.
func (o *outcomes) alone(pod *unstructured.Unstructured) (pods []*unstructured.Unstructured) {
	if pod.GetAnnotations()["refused-there"] == "" {
		return []*unstructured.Unstructured{pod}
	}
	all := o.named(pod)
	slices.SortFunc(all, func(a, b leaf) int { return strings.Compare(a.at, b.at) })
	for i, one := range all {
		with := pod.DeepCopy()
		with.SetName(fmt.Sprintf("%s-%d", pod.GetName(), i))
		for _, other := range all {
			if other != one {
				remove(with.Object["spec"], "", other.at)
			}
		}
		pods = append(pods, with)
	}
	return pods
}

// remove removes the leaf at a path.
func remove(value any, at, place string) {
	switch value := value.(type) {
	case map[string]any:
		for name, one := range value {
			if at+"."+name == place {
				delete(value, name)
			} else {
				remove(one, at+"."+name, place)
			}
		}
	case []any:
		for i, one := range value {
			remove(one, fmt.Sprintf("%s[%s]", at, identity(one, i)), place)
		}
	}
}

func (o *outcomes) compare(t *testing.T, pod *corev1.Pod, remote map[string]any) {
	t.Helper()
	home, err := asJSON(pod)
	if err != nil {
		t.Fatal(err)
	}
	remoteValues := map[string]string{}
	for _, one := range leaves(remote, "", "", o.fields) {
		remoteValues[one.at] = one.value
	}
	for _, one := range leaves(home, "", "", o.fields) {
		if slices.ContainsFunc(tokenParts, func(part string) bool { return strings.Contains(one.at, part) }) {
			continue
		}
		value, has := remoteValues[one.at]
		example := fmt.Sprintf("%s of %s: %s at home, %s in the remote cluster", one.at, pod.Name, one.value, cmp.Or(value, "nothing"))
		if value == one.value {
			o.record(one, "carried", example)
			continue
		}
		if has {
			o.record(one, "changed", example)
		} else {
			o.record(one, "left out", example)
		}
		entry := one.field
		if _, is := exceptions[entry]; !is {
			entry = one.at[1:]
		}
		if known, is := exceptions[entry]; !is || known.there != value {
			o.wrong[one.field] = example
		}
		o.used[entry] = true
	}
}

// tableEntry returns the entry of a table that covers a field: the field itself or a parent.
func tableEntry[V any](table map[string]V, field string) (entry string) {
	for one := range maps.Keys(table) {
		if field == one || strings.HasPrefix(field, one+".") || strings.HasPrefix(field, one+"[]") {
			return one
		}
	}
	return ""
}

func (o *outcomes) check(t *testing.T) {
	t.Helper()
	counts, used := map[string]int{}, map[string]bool{}
	for _, field := range o.fields {
		kinds := o.kinds[field]
		if example, is := o.wrong[field]; is {
			t.Errorf("%s is not copied, and is not listed as an exception: %s", field, example)
		}
		for outcome := range kinds {
			counts[outcome]++
		}
		reason := tableEntry(notSet, field)
		if inner, is := strings.CutPrefix(field, "ephemeralContainers[]."); is && slices.Contains(notEphemeral, inner[:strings.IndexAny(inner+".", ".[")]) {
			continue
		}
		// API servers omit what is false, unless that is not the default.
		isSet := len(o.values[field]) > 1 || o.values[field]["true"] || kinds["refused"] != "" || kinds["off"] != ""
		switch {
		case !isSet && reason == "":
			t.Errorf("%s is not tested: testdata/fields.yaml sets it to %v", field, slices.Collect(maps.Keys(o.values[field])))
		case !isSet:
			used[reason] = true
			counts["not set twice"]++
		}
	}
	for field := range exceptions {
		if !o.used[field] {
			t.Errorf("%s is listed as an exception, and is none", field)
		}
	}
	for field := range notSet {
		if !used[field] {
			t.Errorf("%s is listed as a field that is not set twice, and is set twice", field)
		}
	}
	t.Logf("%d fields of a pod's spec: %v (some have more than one outcome)", len(o.fields), counts)
}
