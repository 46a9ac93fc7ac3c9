package remote

import (
	"context"
	"fmt"
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

// This file takes the rights away that the chart gives in a remote cluster, and the
// namespaces of twins, while volumes are there. Data is never lost by it.

const twinFinalizer = "storage.liqo.io/twin"

// identity is what the chart renders for a remote cluster.
type identity struct {
	p         *pair
	namespace *user.Namespace
	manifests []byte
	// role is the name of its Role, ClusterRole and their bindings.
	role       string
	kubeconfig []byte
}

// newRestrictedPair gives the test a remote cluster in which the driver has the rights of
// this level of the chart.
func newRestrictedPair(t *testing.T, level string) (*pair, *identity) {
	t.Helper()
	t.Parallel()
	ensureShared(t)
	remote := user.NewNamespace(t, user.Cluster(t, "remote"))
	p := &pair{t: t, node: "virtual-" + remote.Name, cluster: remote.Name, remote: remote}
	t.Cleanup(p.wantNoTwins)
	rights := newIdentity(p, level)
	p.putSecret(rights.kubeconfig)
	p.declare(spec{"kubeconfigSecretRef": map[string]any{"name": p.cluster}})
	t.Cleanup(p.undeclare)
	startFabric(t, virtualNode(p.node, p.cluster))
	if err := waitMarked(t.Context(), user.Cluster(t, "home"), p.node, p.cluster); err != nil {
		t.Fatal(err)
	}
	p.home = user.NewNamespaceNamed(t, user.Cluster(t, "home"), remote.Name)
	return p, rights
}

func newIdentity(p *pair, level string) *identity {
	p.t.Helper()
	i := &identity{p: p, namespace: user.NewNamespace(p.t, p.remote.Cluster)}
	i.role = "liqo-csi-remote." + i.namespace.Name
	p.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(p.t.Context()), user.Patience)
		defer cancel()
		if err := i.run(ctx, "delete", "--ignore-not-found", "-f", "-"); err != nil {
			p.t.Error(err)
		}
	})
	i.setLevel(level)

	var token []byte
	i.namespace.Eventually("there is a token", func(ctx context.Context) (string, error) {
		secret, err := i.namespace.Client.CoreV1().Secrets(i.namespace.Name).Get(ctx, "liqo-csi-remote-token", metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if token = secret.Data["token"]; len(token) == 0 {
			return "it is empty", nil
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

// setLevel gives the rights of this level.
func (i *identity) setLevel(level string) {
	i.p.t.Helper()
	access := chart.Values{"only": true, "level": level}
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

// mustRun runs kubectl in the remote cluster, with the manifests as its input.
func (i *identity) run(ctx context.Context, args ...string) error {
	command := exec.CommandContext(ctx, i.p.remote.Cluster.Kubectl(), args...)
	command.Stdin = strings.NewReader(string(i.manifests))
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// grant gives all rights of the level, (back).
func (i *identity) grant() {
	i.p.t.Helper()
	if err := i.run(i.p.t.Context(), "apply", "-f", "-"); err != nil {
		i.p.t.Fatal(err)
	}
}

// revoke takes the rights of these bindings away.
func (i *identity) revoke(kinds ...string) {
	i.p.t.Helper()
	for _, kind := range kinds {
		if err := i.run(i.p.t.Context(), "delete", kind, i.role, "--namespace", i.p.remote.Name); err != nil {
			i.p.t.Fatal(err)
		}
	}
}

// revokeClaimsInClusterRole takes the right to let twins go everywhere, as clusters have it
// that were connected before the chart gave it.
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

// createWithData makes a volume with a word in it that no pod uses any more.
func (p *pair) createWithData() user.Volume {
	p.t.Helper()
	return p.createAndRun("data", "echo precious > /data/file && sync")
}

// createUnused makes a volume that no pod uses any more.
func (p *pair) createUnused(claim string) user.Volume {
	p.t.Helper()
	return p.createAndRun(claim, "true")
}

// createAndRun makes a volume, runs the script in a pod that has it, and ends the pod.
func (p *pair) createAndRun(claim, script string) user.Volume {
	p.t.Helper()
	pod := "user-of-" + claim
	p.home.Claim(claim, "liqo-reference", "64Mi")
	p.home.Pod(pod, claim, p.onVirtualNode)
	p.home.WaitReady(pod)
	p.remote.Exec(pod, script)
	found := p.waitVolume(claim)
	p.waitCondition(claim, corev1.ConditionTrue, "TwinBound")
	p.home.DeletePod(pod)
	p.remote.Eventually("the pod there goes away", func(ctx context.Context) (string, error) {
		_, err := p.remote.Client.CoreV1().Pods(p.remote.Name).Get(ctx, pod, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "it is there", err
	})
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

// waitReclaimPolicy waits until the real volume has this reclaim policy.
func (p *pair) waitReclaimPolicy(v user.Volume, wanted corev1.PersistentVolumeReclaimPolicy) {
	p.t.Helper()
	p.remote.Eventually(fmt.Sprintf("the real volume is to be %s", wanted), func(ctx context.Context) (string, error) {
		real, err := p.remote.Client.CoreV1().PersistentVolumes().Get(ctx, v.Real.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			user.ViolatedNow(p.t, "the real volume %s is gone", v.Real.Name)
		}
		if err != nil || real.Spec.PersistentVolumeReclaimPolicy == wanted {
			return "", err
		}
		return fmt.Sprintf("it is %s", real.Spec.PersistentVolumeReclaimPolicy), nil
	})
}

// waitTwinRecreated waits until there is another twin on the same data, and all is as before.
func (p *pair) waitTwinRecreated(v user.Volume) {
	p.t.Helper()
	p.remote.Eventually("the twin is made again", func(ctx context.Context) (string, error) {
		twin, err := p.twin(ctx, v.Twin.Name)
		if err != nil {
			return "", err
		}
		if twin.UID == v.Twin.UID || twin.Status.Phase != corev1.ClaimBound || twin.Spec.VolumeName != v.Real.Name {
			return fmt.Sprintf("twin %s is %s, of %s", twin.UID, twin.Status.Phase, twin.Spec.VolumeName), nil
		}
		return "", nil
	})
	p.waitReclaimPolicy(v, v.Real.Spec.PersistentVolumeReclaimPolicy)
	p.waitCondition(v.Claim.Name, corev1.ConditionTrue, "TwinBound")
}

// waitMessage waits until the condition of the claim mentions these words.
func (p *pair) waitMessage(words ...string) {
	p.t.Helper()
	p.home.Eventually(fmt.Sprintf("the claim mentions %q", words), func(ctx context.Context) (string, error) {
		claim, err := p.home.Client.CoreV1().PersistentVolumeClaims(p.home.Name).Get(ctx, "data", metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		told := ""
		for _, condition := range claim.Status.Conditions {
			if condition.Type == twinReady {
				told = condition.Message
			}
		}
		for _, word := range words {
			if !strings.Contains(told, word) {
				return "it says " + told, nil
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

// All rights are taken away under a live volume, somebody deletes the twin
// meanwhile, and then they are given back.
func TestRightsAreTakenAwayAndGivenBack(t *testing.T) {
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
			if level == "minimal" { // nothing protects twins there
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

// A twin made where nothing could be done for its data is protected as soon as something can.
func TestTwinIsProtectedOnceRightsAreGranted(t *testing.T) {
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

// A ClusterRole is gone and its binding is not: the API server cannot tell what is allowed,
// and says so. That is no reason to take a volume for deleted whose PV may not be read.
func TestVolumeIsNotTakenForDeletedWhileRightsAreNotKnown(t *testing.T) {
	p, rights := newRestrictedPair(t, "namespaced")
	found := p.createWithData()
	roles := p.remote.Client.RbacV1().ClusterRoles()
	if err := roles.Delete(t.Context(), rights.role, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	p.deleteClaim("data")
	p.home.Eventually("it is said that the PV cannot be read", func(ctx context.Context) (string, error) {
		about := "involvedObject.name=" + found.Object.Name
		events, err := p.home.Client.CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{FieldSelector: about})
		if err != nil {
			return "", err
		}
		var said []string
		for _, event := range events.Items {
			if strings.Contains(event.Message, "PersistentVolume "+found.Real.Name) && strings.Contains(event.Message, "not found") {
				return "", nil
			}
			said = append(said, event.Message)
		}
		return fmt.Sprintf("said is %q", said), nil
	})
	if _, err := p.home.Client.CoreV1().PersistentVolumes().Get(t.Context(), found.Object.Name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		user.Violated(t, "the volume is taken for deleted: %v", err)
	} else if err != nil {
		t.Error(err)
	}
	rights.grant()
	p.wantGone(found)
}

// A right that is needed to keep the data is missing, the one to let the twin go is not.
func TestTwinIsHeldWhileItsVolumeCannotBeRetained(t *testing.T) {
	p, rights := newRestrictedPair(t, "namespaced")
	found := p.createWithData()
	rights.revoke("clusterrolebinding")
	p.deleteTwin(found)
	p.waitCondition("data", corev1.ConditionFalse, "TwinTerminating")
	p.waitMessage("finalizer "+twinFinalizer, found.Real.Name, "cannot be retained")
	twin, err := p.twin(t.Context(), "data")
	if err != nil || len(twin.Finalizers) == 0 {
		t.Fatalf("the twin is to be held, it is %v: %v", twin, err)
	}
	p.waitReclaimPolicy(found, found.Real.Spec.PersistentVolumeReclaimPolicy)
	rights.grant()
	p.waitTwinRecreated(found)
	p.wantData()
}

func TestRoleBindingIsRemovedThenTheTwin(t *testing.T) {
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

// The namespace takes its RoleBinding with it, maybe before the twin.
func TestNamespaceOfTwinsIsDeleted(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]struct {
		cut bool
		// asBefore: the twin may only be let go by a Role that goes with the namespace.
		asBefore bool
	}{
		"the cluster answers":               {},
		"the cluster does not answer":       {cut: true},
		"by a Role that goes with it alone": {asBefore: true},
	} {
		t.Run(name, func(t *testing.T) {
			p, rights := newRestrictedPair(t, "namespaced")
			found := p.createWithData()
			if how.asBefore {
				rights.revokeClaimsInClusterRole()
				rights.revoke("rolebinding")
			}
			if how.cut {
				p.putSecret(kubeconfigWith(t, unusedPort(t)))
				p.waitCondition("data", corev1.ConditionUnknown, "ClusterUnreachable")
			}
			namespaces := p.remote.Client.CoreV1().Namespaces()
			if err := namespaces.Delete(t.Context(), p.remote.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			if how.cut {
				p.waitFinalizerRemaining(twinFinalizer)
				p.putSecret(rights.kubeconfig)
			}
			p.waitReclaimPolicy(found, corev1.PersistentVolumeReclaimRetain)
			if how.asBefore {
				p.waitFinalizerRemaining(twinFinalizer)
				p.waitMessage(found.Real.Name, "retained")
				// As docs/remote/binding.md says.
				_, err := p.remote.Client.CoreV1().PersistentVolumeClaims(p.remote.Name).Patch(t.Context(), "data",
					types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
				if err != nil {
					t.Fatal(err)
				}
			}
			p.remote.Eventually("the namespace ends", func(ctx context.Context) (string, error) {
				found, err := namespaces.Get(ctx, p.remote.Name, metav1.GetOptions{})
				if apierrors.IsNotFound(err) {
					return "", nil
				}
				return fmt.Sprint(found.Status.Conditions), err
			})
			p.waitReclaimPolicy(found, corev1.PersistentVolumeReclaimRetain)
			if err := p.data(found); err != nil {
				user.ViolatedNow(t, "the data is gone: %v", err)
			}

			object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: p.remote.Name}}
			if _, err := namespaces.Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			rights.grant()
			p.waitTwinRecreated(found)
			p.wantData()
		})
	}
}

// waitFinalizerRemaining waits until the namespace there says that this finalizer holds it.
func (p *pair) waitFinalizerRemaining(finalizer string) {
	p.t.Helper()
	p.remote.Eventually("the namespace names the finalizer "+finalizer, func(ctx context.Context) (string, error) {
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
