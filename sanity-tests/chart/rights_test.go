package chart

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// rights are the rights that the roles and bindings among objects grant to an account.
type rights struct {
	account string
	objects []runtime.Object
}

// check checks rights in the notation of `kubectl auth can-i`: "patch nodes", "list secrets -n
// here", "get configmaps/name -n here", "create csinodes.storage.k8s.io"; subresources are written
// "remoteclusters.storage.liqo.io:status". Several verbs are separated by commas.
func (r rights) check(t *testing.T, may bool, questions ...string) {
	t.Helper()
	for _, question := range questions {
		words := strings.Fields(question)
		namespace := ""
		if len(words) == 4 && words[2] == "-n" {
			namespace = words[3]
		}
		resource, name, _ := strings.Cut(words[1], "/")
		for verb := range strings.SplitSeq(words[0], ",") {
			if r.may(verb, resource, name, namespace) != may {
				t.Errorf("%s %s %s: want %t", verb, r.account, strings.Join(words[1:], " "), may)
			}
		}
	}
}

func (r rights) may(verb, resource, name, namespace string) bool {
	for _, object := range r.objects {
		switch binding := object.(type) {
		case *rbacv1.ClusterRoleBinding:
			if r.isBound(binding.Subjects) && r.roleAllows(binding.RoleRef, "", verb, resource, name) {
				return true
			}
		case *rbacv1.RoleBinding:
			if binding.Namespace == namespace && r.isBound(binding.Subjects) &&
				r.roleAllows(binding.RoleRef, namespace, verb, resource, name) {
				return true
			}
		}
	}
	return false
}

// isBound: accounts of the release are named, other subjects are written "Kind/name".
func (r rights) isBound(subjects []rbacv1.Subject) bool {
	return slices.ContainsFunc(subjects, func(subject rbacv1.Subject) bool {
		if subject.Kind == rbacv1.ServiceAccountKind {
			return subject.Name == r.account && subject.Namespace == Namespace
		}
		return fmt.Sprintf("%s/%s", subject.Kind, subject.Name) == r.account
	})
}

func (r rights) roleAllows(ref rbacv1.RoleRef, namespace, verb, resource, name string) bool {
	for _, object := range r.objects {
		var rules []rbacv1.PolicyRule
		switch role := object.(type) {
		case *rbacv1.ClusterRole:
			if ref.Kind == "ClusterRole" && role.Name == ref.Name {
				rules = role.Rules
			}
		case *rbacv1.Role:
			if ref.Kind == "Role" && role.Name == ref.Name && role.Namespace == namespace {
				rules = role.Rules
			}
		}
		if slices.ContainsFunc(rules, func(rule rbacv1.PolicyRule) bool { return ruleAllows(rule, verb, resource, name) }) {
			return true
		}
	}
	return false
}

func ruleAllows(rule rbacv1.PolicyRule, verb, resource, name string) bool {
	resource, subresource, _ := strings.Cut(resource, ":")
	plural, group, _ := strings.Cut(resource, ".")
	if subresource != "" {
		plural += "/" + subresource
	}
	return slices.Contains(rule.Verbs, verb) && slices.Contains(rule.APIGroups, group) && slices.Contains(rule.Resources, plural) &&
		(len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, name))
}

func TestControllerMayServeRemoteClusters(t *testing.T) {
	controller := rights{"liqo-csi-controller", render(t, everything)}
	controller.check(t, true,
		"get,list,watch,patch nodes",
		"get,list,watch,create,patch csinodes.storage.k8s.io",
		"patch persistentvolumes",
		"patch persistentvolumeclaims:status -n anywhere",
		"get,list,watch,create,patch,delete remoteclusters.storage.liqo.io",
		"patch remoteclusters.storage.liqo.io:status",
		"get,list,watch virtualnodes.offloading.liqo.io -n liqo-tenant-rome",
		"get,list,watch namespacemaps.offloading.liqo.io -n liqo-tenant-rome",
		"get,list,watch clusters.kosmos.io",
		"get,list,watch secrets -n "+Namespace,
		"get,list,watch secrets -n liqo-tenant-rome",
		"get,list,watch secrets -n liqo-tenant-milan",
		"patch secrets/liqo-csi-sessions -n "+Namespace,
		"create configmaps -n "+Namespace,
		"get,list,watch volumeattributesclasses.storage.k8s.io",
		"get,list,watch,create,patch,delete persistentvolumeclaims -n "+StorageNamespace,
		"get,list,watch,create,delete volumesnapshots.snapshot.storage.k8s.io -n "+StorageNamespace,
		"get volumesnapshots.snapshot.storage.k8s.io -n anywhere",
		"get,list,watch,patch volumesnapshotcontents.snapshot.storage.k8s.io",
		"get,list volumesnapshotclasses.snapshot.storage.k8s.io",
		"create,delete persistentvolumes",
		"get,list,watch,patch volumemoves.storage.liqo.io -n anywhere",
		"patch volumemoves.storage.liqo.io:status -n anywhere",
		"create pods:eviction -n anywhere",
		"list poddisruptionbudgets.policy -n anywhere",
		"list statefulsets.apps -n anywhere",
		"create,delete pods -n "+Namespace,
		"create,delete persistentvolumeclaims -n "+Namespace,
		"create,delete secrets -n "+Namespace,
		"get,create pods:portforward -n "+Namespace,
	)
	controller.check(t, false,
		"create,delete pods -n anywhere",
		"create,update,delete volumemoves.storage.liqo.io -n anywhere",
		"get,create pods:portforward -n anywhere",
		"create,delete pods -n "+StorageNamespace,
		// All containers share one account: csi-provisioner has to protect a user's snapshot.
		"create,patch,delete volumesnapshots.snapshot.storage.k8s.io -n anywhere",
		"create,delete volumesnapshotcontents.snapshot.storage.k8s.io",
		"get,list,watch secrets",
		"get,list,watch secrets -n liqo-tenant-turin",
		"get,list,watch secrets -n "+StorageNamespace,
		"patch,update secrets -n "+Namespace,
		"create,patch,update,delete secrets -n liqo-tenant-rome",
		"get,patch,delete configmaps/other -n "+Namespace,
		"list configmaps -n "+Namespace,
		"delete,update,create nodes",
		"delete csinodes.storage.k8s.io",
		"create,delete persistentvolumeclaims -n anywhere",
		"get,list resourcequotas -n "+StorageNamespace,
		"patch virtualnodes.offloading.liqo.io",
		"patch clusters.kosmos.io",
		"create,patch,update,delete volumeattributesclasses.storage.k8s.io",
	)
}

// An identity that may forward ports between the pods of a move has no other rights.
func TestRelaysMayOnlyForwardPorts(t *testing.T) {
	relay := rights{"liqo-csi-relay", render(t, everything)}
	relay.check(t, true, "get,create pods:portforward -n "+Namespace)
	relay.check(t, false,
		"get,create pods:portforward -n anywhere",
		"get,list,create,delete pods -n "+Namespace,
		"get,list,create secrets -n "+Namespace,
		"create pods:exec -n "+Namespace,
	)
}

func TestNoRightsForMovesWithoutMoves(t *testing.T) {
	objects := render(t, Values{"mover": Values{"enabled": false}})
	for _, account := range []string{"liqo-csi-controller", "liqo-csi-relay"} {
		rights{account, objects}.check(t, false,
			"create,delete pods -n "+Namespace,
			"create,delete secrets -n "+Namespace,
			"create,delete persistentvolumeclaims -n "+Namespace,
			"get,create pods:portforward -n "+Namespace,
			"patch volumemoves.storage.liqo.io -n anywhere",
			"create pods:eviction -n anywhere",
		)
	}
}

func TestRemoteMovesAreLimitedToNamedNamespaces(t *testing.T) {
	questions := func(namespace string) []string {
		return []string{
			"get,list,watch,create,delete pods -n " + namespace,
			"get,create pods:portforward -n " + namespace,
			"create secrets -n " + namespace,
		}
	}
	for _, level := range []string{"namespaced", "minimal"} {
		values := remote(level, "a")
		rights{"liqo-csi-remote", render(t, values)}.check(t, false, questions("a")...)
		values["remoteAccess"].(Values)["move"] = true
		account := rights{"liqo-csi-remote", render(t, values)}
		account.check(t, true, questions("a")...)
		account.check(t, false, questions("b")...)
		account.check(t, false, "get,list,watch,update,patch,delete secrets -n a", "create pods:exec -n a")
	}
	values := remote("full")
	values["remoteAccess"].(Values)["move"] = true
	if _, err := helm(t).Render(t.Context(), Release, Namespace, values); err == nil {
		t.Error("pods may be created in every namespace")
	}
}

// Each sidecar has its own role, though all of them share one account.
func TestSidecarsMayReadAttributesClasses(t *testing.T) {
	roles := map[string]*rbacv1.ClusterRole{}
	for _, object := range render(t, nil) {
		if role, is := object.(*rbacv1.ClusterRole); is {
			roles[role.Name] = role
		}
	}
	for name, verbs := range map[string][]string{"provisioner": {"get"}, "resizer": {"get", "list", "watch"}} {
		for _, verb := range verbs {
			may := func(rule rbacv1.PolicyRule) bool {
				return ruleAllows(rule, verb, "volumeattributesclasses.storage.k8s.io", "")
			}
			if !slices.ContainsFunc(roles["liqo-csi-"+name].Rules, may) {
				t.Errorf("csi-%s may not %s attributes classes", name, verb)
			}
		}
	}
}

func TestLiqosTenantNamespacesAreReadOnlyIfListed(t *testing.T) {
	rights{"liqo-csi-controller", render(t, nil)}.check(t, false, "get,list,watch secrets -n liqo-tenant-rome")
}

func TestRemoteRightsMatchTheLevel(t *testing.T) {
	twins := []string{"get,list,watch,create,patch,delete persistentvolumeclaims -n apps", "list events -n apps"}
	snapshots := []string{"get,list,watch,create,delete volumesnapshots.snapshot.storage.k8s.io -n apps"}
	elsewhere := []string{"list,watch,create,delete persistentvolumeclaims -n other", "list events -n other"}
	// The rights that are left if a Role is deleted before the twins of its namespace.
	lettingGo := []string{"get,patch persistentvolumeclaims -n other"}
	cluster := []string{
		"get,list,patch persistentvolumes", "get,list,watch nodes",
		"get,list,watch storageclasses.storage.k8s.io", "get,list,watch csidrivers.storage.k8s.io",
		"get,list,watch csinodes.storage.k8s.io", "get,list,watch csistoragecapacities.storage.k8s.io",
		"get,list,watch volumeattributesclasses.storage.k8s.io",
		"get,list volumesnapshotclasses.snapshot.storage.k8s.io", "get,patch volumesnapshotcontents.snapshot.storage.k8s.io",
	}
	never := []string{
		"get,list,watch,create secrets -n apps", "get,list,watch secrets -n " + Namespace, "get,list,watch,create pods -n apps",
		"create,delete persistentvolumes", "patch nodes", "create,patch csinodes.storage.k8s.io", "get,list,patch resourcequotas -n apps",
		"create,patch,delete storageclasses.storage.k8s.io", "get,watch,create,patch events -n apps", "get,list namespaces",
		"watch persistentvolumes", "list,create,delete volumesnapshotcontents.snapshot.storage.k8s.io",
		"update,patch volumesnapshots.snapshot.storage.k8s.io -n apps",
	}
	giving := remote("minimal", "apps", "more")
	giving["remoteAccess"].(Values)["snapshots"] = true
	for name, level := range map[string]struct {
		values   Values
		may, not [][]string
	}{
		"full":                   {remote("full"), [][]string{twins, snapshots, elsewhere, lettingGo, cluster}, [][]string{never}},
		"namespaced":             {remote("namespaced", "apps", "more"), [][]string{twins, snapshots, lettingGo, cluster}, [][]string{elsewhere, never}},
		"minimal":                {remote("minimal", "apps", "more"), [][]string{twins}, [][]string{snapshots, elsewhere, lettingGo, cluster, never}},
		"minimal with snapshots": {giving, [][]string{twins, snapshots}, [][]string{elsewhere, lettingGo, cluster, never}},
	} {
		t.Run(name, func(t *testing.T) {
			objects := render(t, level.values)
			for _, account := range []string{"liqo-csi-remote", "Group/home"} {
				r := rights{account, objects}
				r.check(t, true, slices.Concat(level.may...)...)
				r.check(t, false, slices.Concat(level.not...)...)
			}
		})
	}
}

// Unoffloading a namespace needs to know which of its claims still exist.
func TestFabricMayReadClaims(t *testing.T) {
	account := rights{"liqo-csi-fabric", render(t, Values{"fabric": Values{"enabled": true}})}
	account.check(t, true, "get,list persistentvolumeclaims -n anywhere")
	account.check(t, false, "create,patch,delete persistentvolumeclaims -n anywhere")
}

// roleRows returns the rows of a table with the rules of the roles of an identity in a remote
// cluster, as in docs/remote/security.md.
func roleRows(t *testing.T, values Values) map[string]bool {
	t.Helper()
	rows := map[string]bool{}
	add := func(place string, rules []rbacv1.PolicyRule) {
		for _, rule := range rules {
			for _, resource := range rule.Resources {
				if rule.APIGroups[0] != "" {
					resource += "." + rule.APIGroups[0]
				}
				if len(rule.ResourceNames) > 0 {
					resource += " (" + strings.Join(rule.ResourceNames, ", ") + ")"
				}
				rows[fmt.Sprintf("%s | %s | %s", place, resource, strings.Join(rule.Verbs, ", "))] = true
			}
		}
	}
	for _, object := range render(t, values) {
		switch role := object.(type) {
		case *rbacv1.ClusterRole:
			place := "the whole cluster"
			if strings.HasSuffix(role.Name, "-workloads") {
				place = "namespaces of the fabric"
			}
			add(place, role.Rules)
		case *rbacv1.Role:
			place := "namespaces that are listed"
			if role.Namespace == Namespace {
				place = "its own namespace"
			}
			add(place, role.Rules)
		}
	}
	return rows
}

// The documentation has what each boolean value of remoteAccess adds to the roles, or removes; a
// test of the program compares the table of the levels.
func TestDocumentationListsTheRightsOfEachValue(t *testing.T) {
	text, err := os.ReadFile("../../deploy/chart/liqo-csi/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var all struct{ RemoteAccess map[string]any }
	if err := yaml.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	levels := map[string][]string{}
	for _, level := range Levels {
		values := remote(level)
		if level == "namespaced" || level == "minimal" {
			values = remote(level, "listed")
		}
		before := roleRows(t, values)
		access := values["remoteAccess"].(Values)
		for name, usual := range all.RemoteAccess {
			usual, is := usual.(bool)
			if !is || name == "only" {
				continue
			}
			access[name] = !usual
			_, refused := helm(t).Render(t.Context(), Release, Namespace, values)
			if refused == nil {
				after := roleRows(t, values)
				for row := range after {
					if !before[row] {
						key := fmt.Sprintf("`%s=%t` | %s", name, !usual, row)
						levels[key] = append(levels[key], level)
					}
				}
				for row := range before {
					if !after[row] {
						t.Errorf("level %s: %s removes %s, which the table cannot express", level, name, row)
					}
				}
			}
			delete(access, name)
		}
	}
	table := "| `remoteAccess.` | in | of | may | with level |\n|---|---|---|---|---|\n"
	for _, row := range slices.Sorted(maps.Keys(levels)) {
		table += "| " + row + " | " + strings.Join(levels[row], ", ") + " |\n"
	}
	page, err := os.ReadFile("../../docs/remote/security.md")
	if err != nil {
		t.Fatal(err)
	}
	_, written, _ := strings.Cut(string(page), "<!-- rights of values: begin -->\n")
	written, _, _ = strings.Cut(written, "<!-- rights of values: end -->")
	if written != table {
		t.Errorf("docs/remote/security.md does not say what the roles do; between its marks belongs:\n%s", table)
	}
}
