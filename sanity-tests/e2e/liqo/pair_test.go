package liqo

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/liqo"
)

// pair is a namespace at home and the one that Liqo makes for it.
type pair struct {
	t            *testing.T
	home, remote *user.Namespace
}

// offloaded gives the test a namespace at home that Liqo has offloaded, and the driver
// rights of this level in the remote cluster.
func offloaded(t *testing.T, level string) *pair {
	t.Helper()
	prepare(t)
	home, remote := user.Cluster(t, "home"), user.Cluster(t, "remote")
	// Taken back when the namespaces are gone: the driver may need them for that.
	t.Cleanup(func() { revoke(t, remote) })
	p := &pair{t: t, home: user.NewNamespace(t, home)}
	// The name that Liqo's default strategy gives it.
	p.remote = user.ExistingNamespace(t, remote, p.home.Name+"-"+liqo.HomeID)
	p.offload()
	p.grant(level)
	return p
}

func (p *pair) offload() {
	p.t.Helper()
	p.ctl("offload", "namespace", p.home.Name)
}

// unoffload ends the offloading, and waits until Liqo has deleted the namespace there.
func (p *pair) unoffload() {
	p.t.Helper()
	p.ctl("unoffload", "namespace", p.home.Name)
	p.waitNamespaceGone(p.remote)
}

func (p *pair) ctl(arguments ...string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), user.Timeout)
	defer cancel()
	if _, err := shared.peering.Ctl(ctx, arguments...); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pair) waitNamespaceGone(n *user.Namespace) {
	p.t.Helper()
	n.Eventually("namespace "+n.Name+" ends", func(ctx context.Context) (string, error) {
		found, err := n.Client.CoreV1().Namespaces().Get(ctx, n.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("it is %s: %v", found.Status.Phase, found.Status.Conditions), nil
	})
}

// there makes the scheduler choose Liqo's node. That the pod tolerates its taint is
// the work of Liqo's webhook.
func there(pod *corev1.Pod) {
	pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: liqo.RemoteID}
}

// annotated has the claim say something.
func annotated(key, value string) func(*corev1.PersistentVolumeClaim) {
	return func(claim *corev1.PersistentVolumeClaim) { claim.Annotations = map[string]string{key: value} }
}

// writes starts a pod on Liqo's node that has the claim, and has it write.
func (p *pair) writes(pod, claim, text string) {
	p.t.Helper()
	p.home.Pod(pod, claim, there)
	p.home.WaitReady(pod)
	p.remote.Exec(pod, "echo "+text+" > /data/file; sync")
}

func (p *pair) wantRead(pod, text string) {
	p.t.Helper()
	if got := p.remote.Exec(pod, "cat /data/file"); got != text {
		user.Violated(p.t, "pod %s reads %q, not %q", pod, got, text)
	}
}

// wantCarriedByLiqo is that the pod there is Liqo's copy of the one at home.
func (p *pair) wantCarriedByLiqo(name string) {
	p.t.Helper()
	pod, err := p.remote.Client.CoreV1().Pods(p.remote.Name).Get(p.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.Kind != "ShadowPod" || pod.Labels["liqo.io/managed-by"] != "shadowpod" {
		p.t.Errorf("pod %s is not one of Liqo's: %v, %v", name, pod.OwnerReferences, pod.Labels)
	}
	p.t.Logf("Liqo %s carried pod %s to node %s: labels %v", shared.peering.Version, name, pod.Spec.NodeName, pod.Labels)
}

// wantGravity is that the volume is reachable from Liqo's cluster and nowhere else.
func wantGravity(t *testing.T, v user.Volume) {
	t.Helper()
	const key = "topology.storage.liqo.io/cluster"
	terms := v.Virtual.Spec.NodeAffinity.Required.NodeSelectorTerms
	if len(terms) != 1 || len(terms[0].MatchExpressions) != 1 || terms[0].MatchExpressions[0].Key != key ||
		fmt.Sprint(terms[0].MatchExpressions[0].Values) != fmt.Sprint([]string{liqo.RemoteID}) {
		t.Errorf("the volume is reachable from %v", terms)
	}
}

func (p *pair) claim(name string) *corev1.PersistentVolumeClaim {
	p.t.Helper()
	claim, err := p.home.Client.CoreV1().PersistentVolumeClaims(p.home.Name).Get(p.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	return claim
}

// deleteClaim deletes a claim that no pod uses, and waits until it is gone.
func (p *pair) deleteClaim(name string) {
	p.t.Helper()
	claims := p.home.Client.CoreV1().PersistentVolumeClaims(p.home.Name)
	if err := claims.Delete(p.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		p.t.Fatal(err)
	}
	p.home.Eventually("claim "+name+" goes away", func(ctx context.Context) (string, error) {
		if _, err := claims.Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return "it is still there", err
		}
		return "", nil
	})
}

// wantGone waits until nothing of a volume is left, here and there.
func (p *pair) wantGone(v user.Volume) {
	p.t.Helper()
	p.home.Eventually("nothing of claim "+v.Claim.Name+" is left", func(ctx context.Context) (string, error) {
		_, here := p.home.Client.CoreV1().PersistentVolumes().Get(ctx, v.Virtual.Name, metav1.GetOptions{})
		_, twin := p.remote.Client.CoreV1().PersistentVolumeClaims(p.remote.Name).Get(ctx, v.Twin.Name, metav1.GetOptions{})
		_, there := p.remote.Client.CoreV1().PersistentVolumes().Get(ctx, v.Real.Name, metav1.GetOptions{})
		var left []string
		for what, err := range map[string]error{"its volume": here, "its twin": twin, "its twin's volume": there} {
			if err == nil {
				left = append(left, what)
			} else if !apierrors.IsNotFound(err) {
				return "", err
			}
		}
		return strings.Join(left, ", "), nil
	})
}

// discard deletes what is left at home of a volume whose claim asked for Retain.
func (p *pair) discard(v user.Volume) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.t.Context()), time.Minute)
	defer cancel()
	err := p.home.Client.CoreV1().PersistentVolumes().Delete(ctx, v.Virtual.Name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		p.t.Error(err)
	}
}

// condition waits until the claim says this of its twin.
func (p *pair) condition(claim, what string, wanted func(corev1.PersistentVolumeClaimCondition) bool) {
	p.t.Helper()
	p.home.Eventually("claim "+claim+" says "+what, func(ctx context.Context) (string, error) {
		found, err := p.home.Client.CoreV1().PersistentVolumeClaims(p.home.Name).Get(ctx, claim, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		for _, condition := range found.Status.Conditions {
			if condition.Type == "storage.liqo.io/TwinReady" && wanted(condition) {
				p.t.Logf("claim %s says %s %s: %s", claim, condition.Status, condition.Reason, condition.Message)
				return "", nil
			}
		}
		return fmt.Sprintf("it says %v", found.Status.Conditions), nil
	})
}

func because(reason string) func(corev1.PersistentVolumeClaimCondition) bool {
	return func(condition corev1.PersistentVolumeClaimCondition) bool { return condition.Reason == reason }
}
