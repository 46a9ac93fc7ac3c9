package chart

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// remote returns values of the remote cluster, with everything that the home cluster could render.
func remote(level string, namespaces ...string) Values {
	access := Values{"only": true, "level": level, "homeClusterID": homeID, "subjects": []Values{{"kind": "Group", "name": "home"}}}
	if namespaces != nil {
		access["namespaces"] = namespaces
	}
	values := maps.Clone(everything)
	values["remoteAccess"] = access
	return values
}

// session is remote with tokens that expire.
func session(level string, namespaces ...string) Values {
	values := remote(level, namespaces...)
	values["remoteAccess"].(Values)["token"] = "session"
	return values
}

func TestRemoteAccessRendersOnlyAnIdentity(t *testing.T) {
	const account, token = "ServiceAccount liqo-csi/liqo-csi-remote", "Secret liqo-csi/liqo-csi-remote-token"
	const role = "liqo-csi-remote.liqo-csi"
	cluster := []string{
		"ClusterRole /" + role, "ClusterRoleBinding /" + role,
		"ValidatingAdmissionPolicy /" + role + "-volumes", "ValidatingAdmissionPolicyBinding /" + role + "-volumes",
		"ValidatingAdmissionPolicy /" + role + "-contents", "ValidatingAdmissionPolicyBinding /" + role + "-contents",
	}
	claims := []string{"ValidatingAdmissionPolicy /" + role + "-claims", "ValidatingAdmissionPolicyBinding /" + role + "-claims"}
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
			got, want := names(t, level.values), slices.Concat([]string{account, token}, claims, level.roles)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("the remote side has\n%s\ninstead of\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		})
	}
}

func TestHomeClusterHasNoObjectsOfRemoteAccess(t *testing.T) {
	for _, name := range names(t, everything) {
		// The chart creates that Secret empty; the controller writes it.
		isSecret := strings.HasPrefix(name, "Secret ") && name != "Secret liqo-csi/liqo-csi-sessions"
		if strings.Contains(name, "liqo-csi-remote") || isSecret {
			t.Errorf("%s belongs to the remote cluster", name)
		}
	}
}

func TestTokenIsForTheRemoteAccount(t *testing.T) {
	token := only[*corev1.Secret](t, render(t, remote("full")))
	if token.Type != corev1.SecretTypeServiceAccountToken || token.Annotations[corev1.ServiceAccountNameKey] != "liqo-csi-remote" {
		t.Errorf("%s of %v", token.Type, token.Annotations)
	}
}

func TestProxiesAreForbiddenByDefault(t *testing.T) {
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

func TestNotesOfHomeAndRemoteCluster(t *testing.T) {
	const secret = "create secret generic NAME --from-file=kubeconfig=FILE"
	for name, side := range map[string]struct {
		values    Values
		says, not []string
	}{
		"home":                    {nil, []string{"liqo-csi connect NAME --node-selector KEY=VALUE --remote-kubeconfig FILE", "once liqo.tenantNamespaces", "Uninstalling deletes no data"}, []string{"liqo-csi-remote-token"}},
		"fabric without policies": {offloading(Values{"policies": false}), []string{"are left as they are. Those with the RuntimeClass"}, nil},
		"fabric":                  {offloading(Values{"policies": true}), []string{"connect NAME --fabric"}, []string{"are left as they are"}},
		"remote": {remote("full"), []string{secret, "\numask 077\nkubectl -n liqo-csi get secret liqo-csi-remote-token", "kind: RemoteCluster", "{{.data.token | base64decode}}"},
			[]string{"Uninstalling", "default: CLASS"}},
		"remote of a fabric": {remote("fabric"), []string{"  fabric: {}\n", "(fabric.enabled) creates its virtual node", "\nkubectl label namespaces -l fabric.storage.liqo.io/home=rome pod-security.kubernetes.io/enforce=baseline\n"}, []string{"nodeSelector", "the selector"}},
		"minimal":            {remote("minimal", "a", "b"), []string{secret, "in a, b.", "storageClasses: {default: CLASS}"}, []string{"Uninstalling"}},
		// Without a RemoteCluster, connect must be given its virtual nodes and, with minimal
		// rights, a class.
		"session":             {session("full"), []string{"--token-only --node-selector KEY=VALUE\n"}, []string{secret, "--fabric"}},
		"session of a fabric": {session("fabric"), []string{"--remote-namespace liqo-csi --token-only --fabric\n", "\nkubectl label namespaces -l fabric.storage.liqo.io/home=rome "}, []string{secret, "--node-selector"}},
		"minimal session":     {session("minimal", "a"), []string{"--token-only --node-selector KEY=VALUE --storage-class CLASS\n"}, []string{secret}},
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

// names returns the names of all objects, "Kind namespace/name", sorted.
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

// The chart and liqo-csi connect render the same: the program embeds the output of the chart, with
// placeholders for values.
func TestConnectCreatesWhatTheChartRenders(t *testing.T) {
	h := helm(t)
	for _, level := range Levels {
		t.Run(level, func(t *testing.T) {
			kept, err := os.ReadFile(h.RemoteManifestsFile(level))
			if err != nil {
				t.Fatal(err)
			}
			rendered, err := h.RemoteManifests(t.Context(), level)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(rendered, kept) {
				t.Fatalf("%s is not what the chart renders: run make chart-manifests", filepath.Base(h.RemoteManifestsFile(level)))
			}
			var listed []string
			if level == "namespaced" || level == "minimal" {
				listed = []string{"apps"}
			}
			named, err := h.Render(t.Context(), "home", "access", RemoteValues(level, "rome.example_1", listed...))
			if err != nil {
				t.Fatal(err)
			}
			put := strings.NewReplacer(RemoteNamespace, "access", HomeCluster, "rome.example_1", ListedNamespace, "apps")
			_, body, _ := strings.Cut(string(kept), "---\n")
			if want := string(AsConnectMakesIt(named)); put.Replace(body) != strings.TrimPrefix(want, "---\n") {
				t.Errorf("with the placeholders replaced it differs from what the chart renders with these values")
			}
		})
	}
}

// The identity may renew its token only with a Secret whose deletion revokes it, and for no longer
// than the policy allows.
func TestSessionHasNoPermanentToken(t *testing.T) {
	for _, level := range Levels {
		var listed []string
		if level == "namespaced" || level == "minimal" {
			listed = []string{"apps"}
		}
		values := RemoteValues(level, "rome", listed...)
		values["remoteAccess"].(Values)["tokenSeconds"] = 86400
		objects := render(t, values)
		for _, object := range objects {
			if secret, is := object.(*corev1.Secret); is && (secret.Type != corev1.SecretTypeOpaque || secret.Name != "liqo-csi-session") {
				t.Errorf("%s has the Secret %s of the type %s", level, secret.Name, secret.Type)
			}
		}
		if got := named[*corev1.ServiceAccount](t, objects, "liqo-csi-remote").Annotations["storage.liqo.io/token-seconds"]; got != "86400" {
			t.Errorf("%s: the annotation that connect reads is %q", level, got)
		}
		account := rights{"liqo-csi-remote", objects}
		account.check(t, true, "create serviceaccounts:token/liqo-csi-remote -n "+Namespace)
		account.check(t, false, "create serviceaccounts:token/default -n "+Namespace, "get,delete secrets/liqo-csi-session -n "+Namespace)
		const policy = "liqo-csi-remote." + Namespace + "-tokens"
		isBound(t, objects, policy)
		found := named[*admissionv1.ValidatingAdmissionPolicy](t, objects, policy)
		if got := found.Spec.Validations[1].Expression; !strings.HasSuffix(got, " <= 86400") {
			t.Errorf("%s: the limit of the validity of tokens is %s", level, got)
		}
		for _, part := range []string{".?kind.orValue('') == 'Secret'", ".?name.orValue('') == 'liqo-csi-session'"} {
			if got := found.Spec.Validations[0].Expression; !strings.Contains(got, part) {
				t.Errorf("%s: tokens are bound to %s", level, got)
			}
		}
	}
	for _, object := range render(t, remote("full")) {
		if role, is := object.(*rbacv1.Role); is {
			t.Errorf("with a permanent token the role %s is rendered", role.Name)
		}
	}
}
