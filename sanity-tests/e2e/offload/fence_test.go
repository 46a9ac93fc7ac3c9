package offload

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/e2e/user"
)

// restrictedClient has the identity of a home cluster in the remote cluster, and all RBAC rights, so that only policies
// refuse its requests.
func restrictedClient(t *testing.T) (kubernetes.Interface, *user.Namespace) {
	t.Helper()
	access := applyPolicies(t)
	return as(t, "system:serviceaccount:"+access.Name+":liqo-csi-remote"), access
}

// applyPolicies applies the policies to the identity of a home cluster, and to these subjects.
func applyPolicies(t *testing.T, subjects ...rbacv1.Subject) *user.Namespace {
	t.Helper()
	access := user.NewNamespace(t, user.Cluster(t, "remote"))
	helm, err := chart.New(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	manifests, err := helm.Render(t.Context(), access.Name, access.Name, chart.Values{"remoteAccess": chart.Values{
		"only": true, "level": "fabric", "endpointCIDRs": endpointCIDRs, "subjects": append([]rbacv1.Subject{}, subjects...),
		"homeClusterID": access.Name, "namespaceLabels": []string{"field.cattle.io/projectId"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	access.Apply(string(manifests))
	t.Cleanup(func() { removePolicies(t, access) })
	return access
}

// as impersonates a user of the remote cluster with all rights.
func as(t *testing.T, name string, groups ...string) kubernetes.Interface {
	t.Helper()
	client, _ := impersonate(t, user.Cluster(t, "remote"), name, append(groups, "system:masters")...)
	return client
}

// removePolicies removes the cluster-scoped objects of the policies.
func removePolicies(t *testing.T, access *user.Namespace) {
	t.Helper()
	ctx, now, these := user.CleanupContext(t), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=" + access.Name}
	roles, policies := access.Client.RbacV1(), access.Client.AdmissionregistrationV1()
	if err := errors.Join(
		roles.ClusterRoles().DeleteCollection(ctx, now, these),
		roles.ClusterRoleBindings().DeleteCollection(ctx, now, these),
		policies.ValidatingAdmissionPolicies().DeleteCollection(ctx, now, these),
		policies.ValidatingAdmissionPolicyBindings().DeleteCollection(ctx, now, these),
	); err != nil {
		t.Error(err)
	}
}

func TestRemoteIdentityIsRestricted(t *testing.T) {
	client, access := restrictedClient(t)
	namespaces := client.CoreV1().Namespaces()
	own := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: access.Name + "-own", Labels: map[string]string{
		"fabric.storage.liqo.io/home": access.Name, "fabric.storage.liqo.io/home-namespace": "shop",
	}}}
	foreign := own.DeepCopy()
	foreign.Labels = nil
	access.Eventually("foreign namespaces to be refused", func(ctx context.Context) (string, error) {
		_, err := namespaces.Create(ctx, foreign, dryRunCreate)
		return mismatch(err, "with the labels of its fabric"), nil
	})
	// Older versions set no Pod Security label. Only the policies apply to this namespace.
	if _, err := access.Client.CoreV1().Namespaces().Create(t.Context(), own, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	createForeignVolume(t, access)
	waitPoliciesEnforced(t, client, access, own.Name)
	t.Cleanup(func() {
		if err := namespaces.Delete(user.CleanupContext(t), own.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	checkOutcome(t, "delete another namespace", namespaces.Delete(t.Context(), access.Name, metav1.DeleteOptions{}), "with the labels of its fabric")
	t.Run("pods", func(t *testing.T) { podsAreRestricted(t, client, own.Name, access.Name) })
	t.Run("endpoints", func(t *testing.T) {
		slicesAreRestricted(t, client, own.Name, access.Name)
		foreignSlicesAreProtected(t, client, access.Client, own.Name)
		slicesAreRepaired(t, client, access.Client, own.Name)
	})
	t.Run("services", func(t *testing.T) { servicesAreRestricted(t, client, own.Name, access.Name) })
	t.Run("secrets", func(t *testing.T) { secretsAreRestricted(t, client, access.Client, own.Name, access.Name) })
	t.Run("bindings", func(t *testing.T) { bindingsAreRestricted(t, client, own.Name, access.Name) })
	t.Run("accounts", func(t *testing.T) { accountsAreRestricted(t, own.Name) })
	t.Run("labels", func(t *testing.T) { labelsAreRestricted(t, client, own) })
	t.Run("pod security", func(t *testing.T) { podSecurityIsEnforced(t, client, access, own) })
	t.Run("volumes", func(t *testing.T) { volumesAreRestricted(t, access) })
	t.Run("claims", func(t *testing.T) { claimsAreRestricted(t, client, access) })
	t.Run("another home cluster", func(t *testing.T) { homeClustersAreIsolated(t, client, access) })
}

// A label or an annotation can disable policies of the remote cluster in a namespace.
func labelsAreRestricted(t *testing.T, client kubernetes.Interface, own *corev1.Namespace) {
	for label, words := range map[string]string{
		"field.cattle.io/projectId":       "",
		podSecurity:                       "enforce=baseline",
		"pod-security.kubernetes.io/warn": "no labels but those of its fabric",
		"openshift.io/run-level":          "no labels but those of its fabric",
	} {
		_, err := client.CoreV1().Namespaces().Create(t.Context(), labelled(own, label), dryRunCreate)
		checkOutcome(t, "the label "+label, err, words)
	}
	for annotation, words := range map[string]string{
		"fabric.storage.liqo.io/home-uid": "",
		"field.cattle.io/projectId":       "",
		"openshift.io/sa.scc.uid-range":   "no annotations but those of its fabric",
	} {
		annotated := labelled(own, "")
		annotated.Annotations = map[string]string{annotation: "0/10"}
		_, err := client.CoreV1().Namespaces().Create(t.Context(), annotated, dryRunCreate)
		checkOutcome(t, "the annotation "+annotation, err, words)
	}
	unlabelled := labelled(own, "")
	delete(unlabelled.Labels, podSecurity)
	_, err := client.CoreV1().Namespaces().Create(t.Context(), unlabelled, dryRunCreate)
	checkOutcome(t, "no Pod Security label", err, "enforce=baseline")
}

const podSecurity = "pod-security.kubernetes.io/enforce"

// labelled returns another namespace of the same home cluster with an additional label.
func labelled(own *corev1.Namespace, label string) *corev1.Namespace {
	labels := maps.Clone(own.Labels)
	labels[podSecurity] = "baseline"
	if label != "" {
		labels[label] = "privileged"
	}
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: own.Name + "-labelled", Labels: labels}}
}

// The baseline applies to everybody who creates pods in a namespace of the fabric.
func podSecurityIsEnforced(t *testing.T, client kubernetes.Interface, access *user.Namespace, own *corev1.Namespace) {
	created, err := client.CoreV1().Namespaces().Create(t.Context(), labelled(own, ""), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.CoreV1().Namespaces().Delete(user.CleanupContext(t), created.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	privileged := newPod("privileged", func(pod *corev1.Pod) {
		pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
	})
	access.Eventually("a privileged pod of an administrator to be refused", func(ctx context.Context) (string, error) {
		_, err := access.Client.CoreV1().Pods(created.Name).Create(ctx, privileged, dryRunCreate)
		return mismatch(err, "violates PodSecurity"), nil
	})
	_, err = client.CoreV1().Pods(created.Name).Create(t.Context(), newPod("plain"), dryRunCreate)
	checkOutcome(t, "a plain pod", err, "")
}

// Two home clusters that share a remote cluster cannot access each other's namespaces.
func homeClustersAreIsolated(t *testing.T, client kubernetes.Interface, access *user.Namespace) {
	namespaces := access.Client.CoreV1().Namespaces()
	other := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: access.Name + "-other", Labels: map[string]string{
		"fabric.storage.liqo.io/home": "another-home", "fabric.storage.liqo.io/home-namespace": "shop",
	}}}
	_, errNamespace := client.CoreV1().Namespaces().Create(t.Context(), other, dryRunCreate)
	if _, err := namespaces.Create(t.Context(), other, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := namespaces.Delete(context.WithoutCancel(t.Context()), other.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	_, errPod := client.CoreV1().Pods(other.Name).Create(t.Context(), newPod("restricted"), dryRunCreate)
	_, errConfig := client.CoreV1().ConfigMaps(other.Name).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "restricted"}}, dryRunCreate)
	_, errBinding := client.RbacV1().RoleBindings(other.Name).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "restricted"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "liqo-csi-remote." + access.Name + "-workloads"},
	}, dryRunCreate)
	errDelete := client.CoreV1().Namespaces().Delete(t.Context(), other.Name, metav1.DeleteOptions{})
	for what, mismatch := range map[string]string{
		"create":      mismatch(errNamespace, "with the labels of its fabric"),
		"delete":      mismatch(errDelete, "with the labels of its fabric"),
		"a pod":       mismatch(errPod, "in the namespaces of its fabric"),
		"a ConfigMap": mismatch(errConfig, "in the namespaces of its fabric"),
		"a binding":   mismatch(errBinding, "in the namespaces of its fabric"),
	} {
		if mismatch != "" {
			user.Violated(t, "the namespace of another home cluster: %s: %s", what, mismatch)
		}
	}
}

// The policies also apply to the service accounts of the fabric's namespaces, so that their tokens grant no more than the
// home cluster has.
func accountsAreRestricted(t *testing.T, own string) {
	client := as(t, "system:serviceaccount:"+own+":default")
	account := client.CoreV1().Pods(own)
	privileged := func(pod *corev1.Pod) {
		pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
	}
	for what, one := range map[string]struct {
		edit  func(*corev1.Pod)
		words string
	}{
		"a plain pod": {func(*corev1.Pod) {}, ""},
		"privileged":  {privileged, "privileged"},
		"hostPath":    {withVolume(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}), "hostPath"},
	} {
		_, err := account.Create(t.Context(), newPod("by-an-account", one.edit), dryRunCreate)
		checkOutcome(t, what+" of a service account", err, one.words)
	}
	_, err := client.CoreV1().Services(own).Create(t.Context(), externalService(), dryRunCreate)
	checkOutcome(t, "a Service of a service account", err, "externalIPs")
	_, err = client.CoreV1().Services(own).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "by-an-account"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}, dryRunCreate)
	checkOutcome(t, "a plain Service of a service account", err, "")
	_, err = client.CoreV1().Secrets(own).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "by-an-account", Annotations: map[string]string{corev1.ServiceAccountNameKey: "default"}},
		Type:       corev1.SecretTypeServiceAccountToken,
	}, dryRunCreate)
	checkOutcome(t, "a token of a service account", err, "may have no Secrets of the types")
	_, err = client.DiscoveryV1().EndpointSlices(own).Create(t.Context(), newSlice("e2e", "IPv4", "10.0.0.1"), dryRunCreate)
	checkOutcome(t, "an EndpointSlice of a service account", err, "no EndpointSlices but those of its fabric")
	_, err = client.RbacV1().RoleBindings(own).Create(t.Context(), viewBinding(), dryRunCreate)
	checkOutcome(t, "a RoleBinding of a service account", err, "bind no role but")
	// Other namespaces are not the fabric's: the policies do not restrict their accounts.
	elsewhere := as(t, "system:serviceaccount:default:default").CoreV1().Pods("default")
	_, err = elsewhere.Create(t.Context(), newPod("by-an-account", privileged), dryRunCreate)
	checkOutcome(t, "a pod of another namespace", err, "")
}

func externalService() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "restricted"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}, ExternalIPs: []string{"192.0.2.1"}},
	}
}

func viewBinding() *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "restricted"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
	}
}

// The policies apply to users, groups and service accounts with the rights of a home cluster.
func TestPoliciesApplyToSubjectsOfEachKind(t *testing.T) {
	access := applyPolicies(t,
		rbacv1.Subject{Kind: rbacv1.UserKind, Name: "e2e-user"},
		rbacv1.Subject{Kind: rbacv1.GroupKind, Name: "e2e-group"},
		rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Name: "account", Namespace: "e2e-accounts"},
	)
	foreign := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: access.Name + "-foreign"}}
	for what, client := range map[string]kubernetes.Interface{
		"User":           as(t, "e2e-user"),
		"Group":          as(t, "e2e-member", "e2e-group"),
		"ServiceAccount": as(t, "system:serviceaccount:e2e-accounts:account"),
	} {
		access.Eventually("a foreign namespace to be refused to the "+what, func(ctx context.Context) (string, error) {
			_, err := client.CoreV1().Namespaces().Create(ctx, foreign, dryRunCreate)
			return mismatch(err, "with the labels of its fabric"), nil
		})
	}
	_, err := as(t, "e2e-other").CoreV1().Namespaces().Create(t.Context(), foreign, dryRunCreate)
	checkOutcome(t, "another user creates a namespace", err, "")
}

// waitPoliciesEnforced waits until the API server applies all policies, in any order.
func waitPoliciesEnforced(t *testing.T, client kubernetes.Interface, access *user.Namespace, own string) {
	ofAccount := as(t, "system:serviceaccount:"+own+":default")
	account := ofAccount.CoreV1().Pods(own)
	privileged := newPod("restricted", func(pod *corev1.Pod) {
		pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
	})
	object := metav1.ObjectMeta{Name: "restricted"}
	for policy, create := range map[string]func(context.Context) error{
		"pods": func(ctx context.Context) error {
			_, err := client.CoreV1().Pods(access.Name).Create(ctx, newPod("restricted"), dryRunCreate)
			return err
		},
		"accounts": func(ctx context.Context) error {
			_, err := account.Create(ctx, privileged, dryRunCreate)
			return err
		},
		"services of accounts": func(ctx context.Context) error {
			_, err := ofAccount.CoreV1().Services(own).Create(ctx, externalService(), dryRunCreate)
			return err
		},
		"endpointslices of accounts": func(ctx context.Context) error {
			_, err := ofAccount.DiscoveryV1().EndpointSlices(own).Create(ctx, newSlice("e2e", "IPv4", "10.0.0.1"), dryRunCreate)
			return err
		},
		"rolebindings of accounts": func(ctx context.Context) error {
			_, err := ofAccount.RbacV1().RoleBindings(own).Create(ctx, viewBinding(), dryRunCreate)
			return err
		},
		"endpointslices": func(ctx context.Context) error {
			slice := &discoveryv1.EndpointSlice{ObjectMeta: object, AddressType: discoveryv1.AddressTypeIPv4}
			_, err := client.DiscoveryV1().EndpointSlices(access.Name).Create(ctx, slice, dryRunCreate)
			return err
		},
		"volumes": func(ctx context.Context) error {
			_, err := client.CoreV1().PersistentVolumes().Patch(ctx, restrictedVolume(access), types.MergePatchType, []byte(`{"spec": {"mountOptions": ["ro"]}}`), dryRunPatch)
			return err
		},
		"claims": func(ctx context.Context) error {
			return client.CoreV1().PersistentVolumeClaims(access.Name).Delete(ctx, foreignClaim, dryRunDelete)
		},
		"configuration": func(ctx context.Context) error {
			_, err := client.CoreV1().ConfigMaps(access.Name).Create(ctx, &corev1.ConfigMap{ObjectMeta: object}, dryRunCreate)
			return err
		},
		"rolebindings": func(ctx context.Context) error {
			_, err := client.RbacV1().RoleBindings(access.Name).Create(ctx, viewBinding(), dryRunCreate)
			return err
		},
	} {
		access.Eventually("the policy for "+policy+" to be applied", func(ctx context.Context) (string, error) {
			err := create(ctx)
			switch {
			case err == nil:
				return "it refuses nothing yet", nil
			case apierrors.IsForbidden(err) || apierrors.IsInvalid(err):
				return "", nil
			}
			return "", err
		})
	}
}

func podsAreRestricted(t *testing.T, client kubernetes.Interface, own, other string) {
	first := func(edit func(*corev1.Container)) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { edit(&pod.Spec.Containers[0]) }
	}
	initial := func(may corev1.SecurityContext) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "busybox", SecurityContext: &may}}
		}
	}
	for what, one := range map[string]struct {
		edit  func(*corev1.Pod)
		words string
	}{
		"a plain pod":     {func(*corev1.Pod) {}, ""},
		"a capability":    {initial(corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"CHOWN"}}}), ""},
		"hostNetwork":     {func(pod *corev1.Pod) { pod.Spec.HostNetwork = true }, "of their node"},
		"hostPID":         {func(pod *corev1.Pod) { pod.Spec.HostPID = true }, "of their node"},
		"hostIPC":         {func(pod *corev1.Pod) { pod.Spec.HostIPC = true }, "of their node"},
		"flexVolume":      {withVolume(corev1.VolumeSource{FlexVolume: &corev1.FlexVolumeSource{Driver: "a/b"}}), "flexVolume"},
		"hostPath":        {withVolume(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}), "hostPath"},
		"nfs":             {withVolume(corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "192.0.2.1", Path: "/"}}), "remoteAccess.pods.volumeTypes"},
		"a token":         {withProjectedVolume(corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "t"}}), "no token of it"},
		"an automount":    {func(pod *corev1.Pod) { pod.Spec.AutomountServiceAccountToken = nil }, "no token of it"},
		"hostPort":        {first(func(c *corev1.Container) { c.Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80}} }), "hostPort"},
		"privileged":      {first(func(c *corev1.Container) { c.SecurityContext = &corev1.SecurityContext{Privileged: new(true)} }), "privileged"},
		"privileged init": {initial(corev1.SecurityContext{Privileged: new(true)}), "privileged"},
		"SYS_ADMIN":       {initial(corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"SYS_ADMIN"}}}), "capabilities"},
		"an unsafe sysctl": {func(pod *corev1.Pod) {
			pod.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "kernel.msgmax", Value: "1"}}}
		}, "sysctls"},
		"an AppArmor annotation": {func(pod *corev1.Pod) {
			pod.Annotations = map[string]string{"container.apparmor.security.beta.kubernetes.io/" + pod.Spec.Containers[0].Name: "unconfined"}
		}, "unconfined"},
		"an SELinux type":  {initial(corev1.SecurityContext{SELinuxOptions: &corev1.SELinuxOptions{Type: "spc_t"}}), "SELinux"},
		"an SELinux level": {initial(corev1.SecurityContext{SELinuxOptions: &corev1.SELinuxOptions{Level: "s0:c1"}}), ""},
		"a probe of another host": {first(func(c *corev1.Container) {
			c.LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Host: "169.254.169.254", Port: intstr.FromInt32(80)}}}
		}), "no other host"},
		"a hook to another host": {first(func(c *corev1.Container) {
			c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Host: "169.254.169.254", Port: intstr.FromInt32(80)}}}
		}), "no other host"},
		"a probe of itself": {first(func(c *corev1.Container) {
			c.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(80)}}}
		}), ""},
		"a node":   {func(pod *corev1.Pod) { pod.Spec.NodeName = "remote-1" }, "nodeName"},
		"priority": {func(pod *corev1.Pod) { pod.Spec.PriorityClassName = "system-node-critical" }, "priority of the system"},
	} {
		_, err := client.CoreV1().Pods(own).Create(t.Context(), newPod("restricted", one.edit), dryRunCreate)
		checkOutcome(t, what, err, one.words)
	}
	for _, elsewhere := range []string{other, "kube-system", "default"} {
		_, err := client.CoreV1().Pods(elsewhere).Create(t.Context(), newPod("restricted"), dryRunCreate)
		checkOutcome(t, "in "+elsewhere, err, "in the namespaces of its fabric")
	}
	// The policies apply to updates, too.
	pods := client.CoreV1().Pods(own)
	if _, err := pods.Create(t.Context(), newPod("kept"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	debug := []byte(`{"spec": {"ephemeralContainers": [{"name": "debug", "image": "busybox", "securityContext": {"privileged": true}}]}}`)
	_, err := pods.Patch(t.Context(), "kept", types.StrategicMergePatchType, debug, metav1.PatchOptions{}, "ephemeralcontainers")
	checkOutcome(t, "an ephemeral container", err, "privileged")
}

func bindingsAreRestricted(t *testing.T, client kubernetes.Interface, own, other string) {
	role := "liqo-csi-remote." + other
	itself := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Name: "liqo-csi-remote", Namespace: other}
	const noSubject = "to nobody but itself"
	for _, one := range []struct {
		namespace, kind, role string
		subject               rbacv1.Subject
		words                 string
	}{
		{own, "ClusterRole", role + "-workloads", itself, ""},
		{own, "ClusterRole", role + "-workloads", rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Name: "default", Namespace: own}, noSubject},
		{own, "ClusterRole", role + "-workloads", rbacv1.Subject{Kind: rbacv1.UserKind, Name: itself.Name}, noSubject},
		{own, "ClusterRole", role + "-workloads", rbacv1.Subject{Kind: rbacv1.GroupKind, Name: "system:authenticated"}, noSubject},
		{own, "ClusterRole", "cluster-admin", itself, "bind no role but"},
		{own, "Role", role + "-workloads", itself, "bind no role but"},
		{other, "ClusterRole", role + "-workloads", itself, "only in the namespaces of its fabric"},
		{"kube-system", "ClusterRole", role + "-workloads", itself, "only in the namespaces of its fabric"},
	} {
		binding := &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "restricted"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: one.kind, Name: one.role},
			Subjects:   []rbacv1.Subject{one.subject},
		}
		_, err := client.RbacV1().RoleBindings(one.namespace).Create(t.Context(), binding, dryRunCreate)
		checkOutcome(t, fmt.Sprint(one), err, one.words)
	}
}

func checkOutcome(t *testing.T, what string, err error, words string) {
	t.Helper()
	if mismatch := mismatch(err, words); mismatch != "" {
		t.Errorf("%s: %s", what, mismatch)
	}
}

// mismatch describes how an error differs from a refusal that contains words, or from success if words is empty.
func mismatch(err error, words string) string {
	if err == nil && words != "" {
		return fmt.Sprintf("%sit is granted instead of refused with %q", user.Violation, words)
	}
	if (err == nil) != (words == "") || err != nil && !strings.Contains(err.Error(), words) {
		return fmt.Sprintf("the outcome is %v instead of %q", err, words)
	}
	return ""
}

// The fabric's own identity at home has all RBAC rights in this test, so that only policies refuse
// its requests.
func TestFabricGrantsRightsOnlyToItself(t *testing.T) {
	n, _ := offloadedTenant(t)
	client, _ := impersonate(t, n.Cluster, serviceAccountPrefix+"fabric", "system:masters")
	const name = "liqo-csi-fabric-reflected"
	n.Eventually("the fabric to have bound its role", func(ctx context.Context) (string, error) {
		_, err := n.Client.RbacV1().RoleBindings(n.Name).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return err.Error(), nil
		}
		return "", err
	})
	binding, err := n.Client.RbacV1().RoleBindings(n.Name).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	update := func(change func(*rbacv1.RoleBinding)) error {
		changed := binding.DeepCopy()
		change(changed)
		_, err := client.RbacV1().RoleBindings(n.Name).Update(t.Context(), changed, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	create := func(namespace string, change func(*rbacv1.RoleBinding)) error {
		other := &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: binding.RoleRef, Subjects: binding.Subjects,
		}
		change(other)
		_, err := client.RbacV1().RoleBindings(namespace).Create(t.Context(), other, dryRunCreate)
		return err
	}
	same := func(*rbacv1.RoleBinding) {}
	if err := update(same); err != nil {
		t.Errorf("its own binding is refused: %v", err)
	}
	plain := user.NewNamespace(t, n.Cluster)
	for what, one := range map[string]struct {
		err   error
		words string
	}{
		"another subject": {update(func(it *rbacv1.RoleBinding) {
			it.Subjects = append(it.Subjects, rbacv1.Subject{Kind: "ServiceAccount", Name: "default", Namespace: n.Name})
		}), "nobody but itself"},
		"another role": {create(n.Name, func(it *rbacv1.RoleBinding) {
			it.Name, it.RoleRef.Name = "other", "cluster-admin"
		}), "no role but the one"},
		"another namespace": {create(plain.Name, same), "fabric-reads-offloaded"},
	} {
		checkOutcome(t, what, one.err, one.words)
	}
}
