package chart

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// remote is the side of the remote cluster, with all that the home side could render.
func remote(level string, namespaces ...string) Values {
	access := Values{"only": true, "level": level, "subjects": []Values{{"kind": "Group", "name": "home"}}}
	if namespaces != nil {
		access["namespaces"] = namespaces
	}
	values := maps.Clone(everything)
	values["remoteAccess"] = access
	return values
}

func TestRemoteSideIsAnIdentityAndNothingElse(t *testing.T) {
	const account, token = "ServiceAccount liqo-csi/liqo-csi-remote", "Secret liqo-csi/liqo-csi-remote-token"
	const role = "liqo-csi-remote.liqo-csi"
	cluster := []string{
		"ClusterRole /" + role, "ClusterRoleBinding /" + role,
		"ValidatingAdmissionPolicy /" + role + "-volumes", "ValidatingAdmissionPolicyBinding /" + role + "-volumes",
	}
	inNamespaces := []string{"Role a/" + role, "RoleBinding a/" + role, "Role b/" + role, "RoleBinding b/" + role}
	for name, level := range map[string]struct {
		values Values
		roles  []string
	}{
		"default":    {Values{"remoteAccess": Values{"only": true}}, cluster},
		"full":       {remote("full"), cluster},
		"namespaced": {remote("namespaced", "a", "b"), slices.Concat(cluster, inNamespaces)},
		"minimal":    {remote("minimal", "a", "b"), inNamespaces},
	} {
		t.Run(name, func(t *testing.T) {
			got, want := names(t, level.values), append([]string{account, token}, level.roles...)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("the remote side has\n%s\ninstead of\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		})
	}
}

func TestHomeSideHasNothingOfTheRemoteOne(t *testing.T) {
	for _, name := range names(t, everything) {
		if strings.Contains(name, "liqo-csi-remote") || strings.HasPrefix(name, "Secret ") {
			t.Errorf("%s is of the remote side", name)
		}
	}
}

func TestTokenIsOfTheRemoteAccount(t *testing.T) {
	token := only[*corev1.Secret](t, render(t, remote("full")))
	if token.Type != corev1.SecretTypeServiceAccountToken || token.Annotations[corev1.ServiceAccountNameKey] != "liqo-csi-remote" {
		t.Errorf("%s of %v", token.Type, token.Annotations)
	}
}

func TestProxiesAreForbiddenUnlessAsked(t *testing.T) {
	for name, side := range map[string]struct {
		values  Values
		allowed bool
	}{"defaults": {nil, false}, "everything": {everything, true}} {
		driver := only[*appsv1.Deployment](t, render(t, side.values)).Spec.Template.Spec.Containers[0]
		if slices.Contains(driver.Args, "--allow-proxy") != side.allowed {
			t.Errorf("%s: %v", name, driver.Args)
		}
	}
}

func TestNotesAreThoseOfTheSide(t *testing.T) {
	const secret = "create secret generic NAME --from-file=kubeconfig=FILE"
	for name, side := range map[string]struct {
		values    Values
		says, not []string
	}{
		"home":                    {nil, []string{secret, "once liqo.tenantNamespaces", "Uninstalling takes no data"}, []string{"liqo-csi-remote-token"}},
		"fabric without policies": {offloading(Values{"policies": false}), []string{"are left as they are. Those with the RuntimeClass"}, nil},
		"fabric":                  {offloading(Values{"policies": true}), nil, []string{"are left as they are"}},
		"remote": {remote("full"), []string{secret, "get secret liqo-csi-remote-token", "kind: RemoteCluster", "{{.data.token | base64decode}}"},
			[]string{"Uninstalling", "default: CLASS"}},
		"remote of a fabric": {remote("fabric"), []string{"  fabric: {}\n", "(fabric.enabled) makes the node"}, []string{"nodeSelector", "the selector"}},
		"minimal":            {remote("minimal", "a", "b"), []string{secret, "in a, b.", "storageClasses: {default: CLASS}"}, []string{"Uninstalling"}},
	} {
		t.Run(name, func(t *testing.T) {
			notes, err := helm(t).Notes(t.Context(), Release, Namespace, side.values)
			if err != nil {
				t.Fatal(err)
			}
			for _, part := range side.says {
				if !strings.Contains(notes, part) {
					t.Errorf("%q is missing in:\n%s", part, notes)
				}
			}
			for _, part := range side.not {
				if strings.Contains(notes, part) {
					t.Errorf("%q is out of place in:\n%s", part, notes)
				}
			}
		})
	}
}

// names are those of all objects, "Kind namespace/name", sorted.
func names(t *testing.T, values Values) []string {
	t.Helper()
	var names []string
	for _, object := range render(t, values) {
		meta := object.(metav1.Object)
		names = append(names, fmt.Sprintf("%s %s/%s", reflect.TypeOf(object).Elem().Name(), meta.GetNamespace(), meta.GetName()))
	}
	slices.Sort(names)
	return names
}
