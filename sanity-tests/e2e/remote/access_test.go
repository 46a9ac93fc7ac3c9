package remote

import (
	"context"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/e2e/user"
)

// This file revokes rights that the chart grants in a remote cluster, and deletes namespaces of twins. No
// data may be lost.

const twinFinalizer = "storage.liqo.io/twin"

// identity has the objects that the chart renders for access to a remote cluster.
type identity struct {
	p         *pair
	namespace *user.Namespace
	manifests []byte
	// role is the name of the Role, the ClusterRole and their bindings.
	role string
	// more are values of remoteAccess besides the level.
	more       chart.Values
	kubeconfig []byte
}

// newRestrictedPair is newDedicatedPair with the rights of this level of the chart, and other values of remoteAccess.
func newRestrictedPair(t *testing.T, level string, more ...chart.Values) (*pair, *identity) {
	t.Helper()
	t.Parallel()
	ensureShared(t)
	p := newRemoteNamespace(t)
	rights := newIdentity(p, level, more...)
	p.putSecret(rights.kubeconfig)
	p.declare(spec{"kubeconfigSecretRef": map[string]any{"name": p.cluster}})
	t.Cleanup(p.undeclare)
	p.startNode()
	p.createHomeNamespace()
	return p, rights
}

func newIdentity(p *pair, level string, more ...chart.Values) *identity {
	p.t.Helper()
	i := &identity{p: p, namespace: user.NewNamespace(p.t, p.remote.Cluster), more: chart.Values{}}
	for _, values := range more {
		maps.Copy(i.more, values)
	}
	i.role = "liqo-csi-remote." + i.namespace.Name
	p.t.Cleanup(func() {
		if err := i.run(user.CleanupContext(p.t), "delete", "--ignore-not-found", "-f", "-"); err != nil {
			p.t.Error(err)
		}
	})
	i.setLevel(level)

	var token []byte
	i.namespace.Eventually("the Secret of the ServiceAccount has a token", func(ctx context.Context) (string, error) {
		secret, err := i.namespace.Client.CoreV1().Secrets(i.namespace.Name).Get(ctx, "liqo-csi-remote-token", metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if token = secret.Data["token"]; len(token) == 0 {
			return "it has none", nil
		}
		return "", nil
	})
	config, err := clientcmd.Load(shared.kubeconfig)
	if err != nil {
		p.t.Fatal(err)
	}
	current := config.Contexts[config.CurrentContext]
	config.AuthInfos[current.AuthInfo] = &clientcmdapi.AuthInfo{Token: string(token)}
	if i.kubeconfig, err = clientcmd.Write(*config); err != nil {
		p.t.Fatal(err)
	}
	return i
}

// setLevel grants the rights of this level.
func (i *identity) setLevel(level string) {
	i.p.t.Helper()
	access := chart.Values{"only": true, "level": level}
	maps.Copy(access, i.more)
	if level != "full" {
		access["namespaces"] = []string{i.p.remote.Name}
	}
	helm, err := chart.New(i.p.t.Context())
	if err != nil {
		i.p.t.Fatal(err)
	}
	i.manifests, err = helm.Render(i.p.t.Context(), "home", i.namespace.Name, chart.Values{"remoteAccess": access})
	if err != nil {
		i.p.t.Fatal(err)
	}
	i.grant()
}

// run runs kubectl in the remote cluster, with the manifests as its input.
func (i *identity) run(ctx context.Context, args ...string) error {
	command := exec.CommandContext(ctx, i.p.remote.Cluster.Kubectl(), args...)
	command.Stdin = strings.NewReader(string(i.manifests))
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// grant grants all rights of the level.
func (i *identity) grant() {
	i.p.t.Helper()
	if err := i.run(i.p.t.Context(), "apply", "-f", "-"); err != nil {
		i.p.t.Fatal(err)
	}
}

// revoke deletes these kinds of bindings.
func (i *identity) revoke(kinds ...string) {
	i.p.t.Helper()
	for _, kind := range kinds {
		if err := i.run(i.p.t.Context(), "delete", kind, i.role, "--namespace", i.p.remote.Name); err != nil {
			i.p.t.Fatal(err)
		}
	}
}

// revokeClaimsInClusterRole removes the rule that allows to remove finalizers of twins in all namespaces.
// Charts of older versions do not have it.
func (i *identity) revokeClaimsInClusterRole() {
	i.p.t.Helper()
	roles := i.p.remote.Client.RbacV1().ClusterRoles()
	role, err := roles.Get(i.p.t.Context(), i.role, metav1.GetOptions{})
	if err != nil {
		i.p.t.Fatal(err)
	}
	kept := role.Rules[:0]
	for _, rule := range role.Rules {
		if rule.Resources[0] != "persistentvolumeclaims" {
			kept = append(kept, rule)
		}
	}
	role.Rules = kept
	if _, err := roles.Update(i.p.t.Context(), role, metav1.UpdateOptions{}); err != nil {
		i.p.t.Fatal(err)
	}
}

// createWithData creates the claim data with a file in its volume, and deletes the pod that wrote it.
func (p *pair) createWithData() user.Volume {
	p.t.Helper()
	return p.createAndRun("data", "echo precious > /data/file && sync")
}

// createUnused creates a volume that no pod uses any more.
func (p *pair) createUnused(claim string) user.Volume {
	p.t.Helper()
	return p.createAndRun(claim, "true")
}

// createAndRun creates a volume, runs the script in a pod with it, and deletes the pod.
func (p *pair) createAndRun(claim, script string) user.Volume {
	p.t.Helper()
	pod := "user-of-" + claim
	p.startPod(pod, claim, "liqo-reference")
	p.remote.Exec(pod, script)
	found := p.waitVolume(claim)
	p.waitCondition(claim, corev1.ConditionTrue, "TwinBound")
	p.home.DeletePod(pod)
	p.remote.WaitDeleted("pod", pod)
	return found
}

func (p *pair) wantData() {
	p.t.Helper()
	p.home.Pod("reader", "data", p.onVirtualNode)
	p.home.WaitReady("reader")
	if got := p.remote.Exec("reader", "cat /data/file"); got != "precious" {
		user.Violated(p.t, "read %q", got)
	}
	p.home.DeletePod("reader")
}

// waitReclaimPolicy waits until the real PersistentVolume has this reclaim policy.
func (p *pair) waitReclaimPolicy(v user.Volume, wanted corev1.PersistentVolumeReclaimPolicy) {
	p.t.Helper()
	p.remote.Eventually(fmt.Sprintf("the reclaim policy of the real PersistentVolume is %s", wanted), func(ctx context.Context) (string, error) {
		real, err := p.remote.Client.CoreV1().PersistentVolumes().Get(ctx, v.Real.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			user.ViolatedNow(p.t, "the real PersistentVolume %s was deleted", v.Real.Name)
		}
		if err != nil || real.Spec.PersistentVolumeReclaimPolicy == wanted {
			return "", err
		}
		return fmt.Sprintf("it is %s", real.Spec.PersistentVolumeReclaimPolicy), nil
	})
}

// waitTwinRecreated waits until another twin has the same real PersistentVolume, with its reclaim policy.
func (p *pair) waitTwinRecreated(v user.Volume) {
	p.t.Helper()
	p.remote.Eventually("the twin is recreated", func(ctx context.Context) (string, error) {
		twin, err := p.twin(ctx, v.Twin.Name)
		if err != nil {
			return "", err
		}
		if twin.UID == v.Twin.UID || twin.Status.Phase != corev1.ClaimBound || twin.Spec.VolumeName != v.Real.Name {
			return fmt.Sprintf("twin %s is %s with the volume %s", twin.UID, twin.Status.Phase, twin.Spec.VolumeName), nil
		}
		return "", nil
	})
	p.waitReclaimPolicy(v, v.Real.Spec.PersistentVolumeReclaimPolicy)
	p.waitCondition(v.Claim.Name, corev1.ConditionTrue, "TwinBound")
}

// waitMessage waits until the message of TwinReady of the claim data has these words.
func (p *pair) waitMessage(words ...string) {
	p.t.Helper()
	p.home.Eventually(fmt.Sprintf("the message of TwinReady has %q", words), func(ctx context.Context) (string, error) {
		claim, err := p.home.Client.CoreV1().PersistentVolumeClaims(p.home.Name).Get(ctx, "data", metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		message := ""
		for _, condition := range claim.Status.Conditions {
			if condition.Type == twinReady {
				message = condition.Message
			}
		}
		for _, word := range words {
			if !strings.Contains(message, word) {
				return "it is " + message, nil
			}
		}
		return "", nil
	})
}

func (p *pair) deleteTwin(v user.Volume) {
	p.t.Helper()
	err := p.remote.Client.CoreV1().PersistentVolumeClaims(p.remote.Name).Delete(p.t.Context(), v.Twin.Name, metav1.DeleteOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
}

// All rights are revoked, the twin is deleted, and then the rights are granted again.
func TestRightsAreRevokedAndGrantedAgain(t *testing.T) {
	t.Parallel()
	for level, bindings := range map[string][]string{
		"full":       {"clusterrolebinding"},
		"namespaced": {"rolebinding", "clusterrolebinding"},
		"minimal":    {"rolebinding"},
	} {
		t.Run(level, func(t *testing.T) {
			p, rights := newRestrictedPair(t, level)
			found := p.createWithData()
			rights.revoke(bindings...)
			p.waitCondition("data", corev1.ConditionUnknown, "ClusterUnreachable")
			p.waitMessage(p.remote.Name, p.cluster, "restore them")
			if level == "minimal" { // twins are not protected
				rights.grant()
				p.waitCondition("data", corev1.ConditionTrue, "TwinBound")
				p.wantData()
				return
			}
			p.deleteTwin(found)
			rights.grant()
			p.waitTwinRecreated(found)
			p.wantData()
		})
	}
}

// A twin gets its finalizer when the driver gets the right to retain its volume.
func TestTwinGetsItsFinalizerOnceRightsAreGranted(t *testing.T) {
	p, rights := newRestrictedPair(t, "minimal")
	found := p.createWithData()
	if slices.Contains(found.Twin.Finalizers, twinFinalizer) {
		t.Fatalf("the twin has the finalizers %q without the right to change its volume", found.Twin.Finalizers)
	}
	rights.setLevel("namespaced")
	p.remote.Eventually("the twin has its finalizer", func(ctx context.Context) (string, error) {
		twin, err := p.twin(ctx, "data")
		if err != nil || slices.Contains(twin.Finalizers, twinFinalizer) {
			return "", err
		}
		return fmt.Sprintf("it has %q", twin.Finalizers), nil
	})
	p.deleteTwin(found)
	p.waitTwinRecreated(found)
	p.wantData()
}

// A ClusterRole is deleted and its binding is not: the 403 of the API server has an evaluation error.
// The driver must not assume that a volume is deleted if it may not read its PersistentVolume.
func TestVolumeIsNotAssumedDeletedWhileRightsAreUnknown(t *testing.T) {
	p, rights := newRestrictedPair(t, "namespaced")
	found := p.createWithData()
	roles := p.remote.Client.RbacV1().ClusterRoles()
	if err := roles.Delete(t.Context(), rights.role, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	p.deleteClaim("data")
	p.home.Eventually("an event reports that the PersistentVolume cannot be read", func(ctx context.Context) (string, error) {
		about := "involvedObject.name=" + found.Virtual.Name
		events, err := p.home.Client.CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{FieldSelector: about})
		if err != nil {
			return "", err
		}
		var messages []string
		for _, event := range events.Items {
			if strings.Contains(event.Message, "PersistentVolume "+found.Real.Name) && strings.Contains(event.Message, "not found") {
				return "", nil
			}
			messages = append(messages, event.Message)
		}
		return fmt.Sprintf("events: %q", messages), nil
	})
	if _, err := p.home.Client.CoreV1().PersistentVolumes().Get(t.Context(), found.Virtual.Name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		user.Violated(t, "the virtual PersistentVolume was deleted: %v", err)
	} else if err != nil {
		t.Error(err)
	}
	rights.grant()
	p.waitVolumeDeleted(found)
}

// The driver may remove the finalizer of a twin, but not retain its volume.
func TestTwinKeepsItsFinalizerWhileItsVolumeCannotBeRetained(t *testing.T) {
	p, rights := newRestrictedPair(t, "namespaced")
	found := p.createWithData()
	rights.revoke("clusterrolebinding")
	p.deleteTwin(found)
	p.waitCondition("data", corev1.ConditionFalse, "TwinTerminating")
	p.waitMessage("finalizer "+twinFinalizer, found.Real.Name, "cannot be retained")
	twin, err := p.twin(t.Context(), "data")
	if err != nil || len(twin.Finalizers) == 0 {
		t.Fatalf("the twin must keep its finalizer: %v, %v", twin, err)
	}
	p.waitReclaimPolicy(found, found.Real.Spec.PersistentVolumeReclaimPolicy)
	rights.grant()
	p.waitTwinRecreated(found)
	p.wantData()
}

func TestTwinIsDeletedAfterItsRoleBinding(t *testing.T) {
	p, rights := newRestrictedPair(t, "namespaced")
	found := p.createWithData()
	rights.revoke("rolebinding")
	p.deleteTwin(found)
	p.waitReclaimPolicy(found, corev1.PersistentVolumeReclaimRetain)
	p.waitCondition("data", corev1.ConditionFalse, "TwinVanished")
	rights.grant()
	p.waitTwinRecreated(found)
	p.wantData()
}

// With the namespace its RoleBinding is deleted, maybe before the twin.
func TestNamespaceOfTwinsIsDeleted(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]struct {
		unreachable bool
		// roleOnly: only a Role in the namespace allows to remove the finalizer of the twin.
		roleOnly bool
	}{
		"the cluster is reachable":                      {},
		"the cluster is unreachable":                    {unreachable: true},
		"only a Role in the namespace grants the right": {roleOnly: true},
	} {
		t.Run(name, func(t *testing.T) {
			p, rights := newRestrictedPair(t, "namespaced")
			found := p.createWithData()
			if how.roleOnly {
				rights.revokeClaimsInClusterRole()
				rights.revoke("rolebinding")
			}
			if how.unreachable {
				p.putSecret(kubeconfigWith(t, unusedPort(t)))
				p.waitCondition("data", corev1.ConditionUnknown, "ClusterUnreachable")
			}
			p.deleteNamespace()
			if how.unreachable {
				p.waitFinalizerRemaining(twinFinalizer)
				p.putSecret(rights.kubeconfig)
			}
			p.waitReclaimPolicy(found, corev1.PersistentVolumeReclaimRetain)
			if how.roleOnly {
				p.waitFinalizerRemaining(twinFinalizer)
				p.waitMessage(found.Real.Name, "retained")
				// See docs/remote/binding.md.
				_, err := p.remote.Client.CoreV1().PersistentVolumeClaims(p.remote.Name).Patch(t.Context(), "data",
					types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
				if err != nil {
					t.Fatal(err)
				}
			}
			p.waitNamespaceDeleted()
			p.waitReclaimPolicy(found, corev1.PersistentVolumeReclaimRetain)
			if err := p.data(found); err != nil {
				user.ViolatedNow(t, "the data was deleted: %v", err)
			}

			p.recreateNamespace()
			rights.grant()
			p.waitTwinRecreated(found)
			p.wantData()
		})
	}
}

// waitFinalizerRemaining waits until a condition of the terminating remote namespace names this finalizer.
func (p *pair) waitFinalizerRemaining(finalizer string) {
	p.t.Helper()
	p.remote.Eventually("the finalizer "+finalizer+" remains in the namespace", func(ctx context.Context) (string, error) {
		found, err := p.remote.Client.CoreV1().Namespaces().Get(ctx, p.remote.Name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		for _, condition := range found.Status.Conditions {
			if condition.Type == corev1.NamespaceFinalizersRemaining && strings.Contains(condition.Message, finalizer) {
				return "", nil
			}
		}
		return fmt.Sprint(found.Status.Conditions), nil
	})
}

func (p *pair) deleteNamespace() {
	p.t.Helper()
	if err := p.remote.Client.CoreV1().Namespaces().Delete(p.t.Context(), p.remote.Name, metav1.DeleteOptions{}); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pair) waitNamespaceDeleted() {
	p.t.Helper()
	p.remote.Eventually("the namespace is deleted", func(ctx context.Context) (string, error) {
		found, err := p.remote.Client.CoreV1().Namespaces().Get(ctx, p.remote.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return fmt.Sprint(found.Status.Conditions), err
	})
}

func (p *pair) recreateNamespace() {
	p.t.Helper()
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: p.remote.Name}}
	if _, err := p.remote.Client.CoreV1().Namespaces().Create(p.t.Context(), object, metav1.CreateOptions{}); err != nil {
		p.t.Fatal(err)
	}
}
