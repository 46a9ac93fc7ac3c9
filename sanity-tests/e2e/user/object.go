package user

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// paths of kinds, as kubectl names them; NAMESPACE is replaced by that of the test.
var paths = map[string]string{
	"namespace": "/api/v1/namespaces",
	"pod":       "/api/v1/namespaces/NAMESPACE/pods",
	"pv":        "/api/v1/persistentvolumes",
	"pvc":       "/api/v1/namespaces/NAMESPACE/persistentvolumeclaims",

	"namespaceoffloading":   "/apis/offloading.liqo.io/v1beta1/namespaces/NAMESPACE/namespaceoffloadings",
	"remotecluster":         "/apis/storage.liqo.io/v1alpha1/remoteclusters",
	"volumemove":            "/apis/storage.liqo.io/v1alpha1/namespaces/NAMESPACE/volumemoves",
	"volumesnapshot":        snapshotAPI + "namespaces/NAMESPACE/volumesnapshots",
	"volumesnapshotcontent": snapshotAPI + "volumesnapshotcontents",
}

// Object returns an object without kubectl: the CPU of processes that waits start again and again is what tests that run
// at the same time lack.
func (n *Namespace) Object(ctx context.Context, kind, name string) (*unstructured.Unstructured, error) {
	path, known := paths[kind]
	if !known {
		return nil, fmt.Errorf("the path of %s %s is not known", kind, name)
	}
	raw, err := n.Client.Discovery().RESTClient().Get().AbsPath(strings.ReplaceAll(path, "NAMESPACE", n.Name), name).DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	object := &unstructured.Unstructured{}
	return object, object.UnmarshalJSON(raw)
}

// Text returns a field of an object, or "".
func Text(object *unstructured.Unstructured, fields ...string) string {
	if object == nil {
		return ""
	}
	text, _, _ := unstructured.NestedString(object.Object, fields...)
	return text
}
