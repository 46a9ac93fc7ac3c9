package liqo

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/liqo"
)

// pair is a namespace at home and its remote namespace, which Liqo creates.
type pair struct {
	t            *testing.T
	home, remote *user.Namespace
}

// newOffloadedPair creates a namespace at home, offloads it, and grants the driver the rights of this level in the
// remote cluster.
func newOffloadedPair(t *testing.T, level string) *pair {
	t.Helper()
	prepare(t)
	home, remote := user.Cluster(t, "home"), user.Cluster(t, "remote")
	// After the deletion of the namespaces, for which the driver may need the rights.
	t.Cleanup(func() { revoke(t, remote) })
	p := &pair{t: t, home: user.NewNamespace(t, home)}
	// The name of Liqo's default strategy.
	p.remote = user.ExistingNamespace(t, remote, p.home.Name+"-"+liqo.HomeID)
	p.offload()
	p.grant(level)
	return p
}

func (p *pair) offload() {
	p.t.Helper()
	p.liqoctl("offload", "namespace", p.home.Name)
}

// unoffload ends the offloading, and waits until Liqo has deleted the remote namespace.
func (p *pair) unoffload() {
	p.t.Helper()
	p.liqoctl("unoffload", "namespace", p.home.Name)
	p.waitNamespaceDeleted(p.remote)
}

func (p *pair) liqoctl(arguments ...string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), user.Timeout)
	defer cancel()
	if _, err := shared.peering.Ctl(ctx, arguments...); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pair) waitNamespaceDeleted(n *user.Namespace) {
	p.t.Helper()
	n.Eventually("namespace "+n.Name+" is deleted", func(ctx context.Context) (string, error) {
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

// onLiqoNode selects Liqo's node. The toleration of its taint is added by Liqo's webhook.
func onLiqoNode(pod *corev1.Pod) {
	pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: liqo.RemoteID}
}

func withAnnotation(key, value string) func(*corev1.PersistentVolumeClaim) {
	return func(claim *corev1.PersistentVolumeClaim) { claim.Annotations = map[string]string{key: value} }
}

// startWriter starts a pod with the claim on Liqo's node, and writes a file.
func (p *pair) startWriter(pod, claim, text string) {
	p.t.Helper()
	p.home.Pod(pod, claim, onLiqoNode)
	p.home.WaitReady(pod)
	p.remote.Exec(pod, "echo "+text+" > /data/file; sync")
}

func (p *pair) wantRead(pod, text string) {
	p.t.Helper()
	if got := p.remote.Exec(pod, "cat /data/file"); got != text {
		user.Violated(p.t, "pod %s reads %q, want %q", pod, got, text)
	}
}

// wantShadowPod checks that Liqo created the remote pod.
func (p *pair) wantShadowPod(name string) {
	p.t.Helper()
	pod, err := p.remote.Client.CoreV1().Pods(p.remote.Name).Get(p.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.Kind != "ShadowPod" || pod.Labels["liqo.io/managed-by"] != "shadowpod" {
		p.t.Errorf("pod %s is not one of Liqo: %v, %v", name, pod.OwnerReferences, pod.Labels)
	}
	p.t.Logf("Liqo %s created pod %s on node %s with the labels %v", shared.peering.Version, name, pod.Spec.NodeName, pod.Labels)
}

// wantRemoteAffinity checks that the volume can only be used in the remote cluster.
func wantRemoteAffinity(t *testing.T, v user.Volume) {
	t.Helper()
	const key = "topology.storage.liqo.io/cluster"
	terms := v.Virtual.Spec.NodeAffinity.Required.NodeSelectorTerms
	if len(terms) != 1 || len(terms[0].MatchExpressions) != 1 || terms[0].MatchExpressions[0].Key != key ||
		fmt.Sprint(terms[0].MatchExpressions[0].Values) != fmt.Sprint([]string{liqo.RemoteID}) {
		t.Errorf("the node affinity of the volume is %v", terms)
	}
}

// deleteClaim deletes a claim without pods, and waits until it is deleted.
func (p *pair) deleteClaim(name string) {
	p.t.Helper()
	claims := p.home.Client.CoreV1().PersistentVolumeClaims(p.home.Name)
	if err := claims.Delete(p.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		p.t.Fatal(err)
	}
	p.home.WaitDeleted("pvc", name)
}

// waitVolumeDeleted waits until all objects of a volume are deleted in both clusters.
func (p *pair) waitVolumeDeleted(v user.Volume) {
	p.t.Helper()
	p.home.Eventually("all objects of claim "+v.Claim.Name+" are deleted", func(ctx context.Context) (string, error) {
		_, virtual := p.home.Client.CoreV1().PersistentVolumes().Get(ctx, v.Virtual.Name, metav1.GetOptions{})
		_, twin := p.remote.Client.CoreV1().PersistentVolumeClaims(p.remote.Name).Get(ctx, v.Twin.Name, metav1.GetOptions{})
		_, real := p.remote.Client.CoreV1().PersistentVolumes().Get(ctx, v.Real.Name, metav1.GetOptions{})
		var left []string
		for what, err := range map[string]error{"virtual volume": virtual, "twin": twin, "real volume": real} {
			if err == nil {
				left = append(left, what)
			} else if !apierrors.IsNotFound(err) {
				return "", err
			}
		}
		return strings.Join(left, ", "), nil
	})
}

// discard deletes the retained virtual PersistentVolume.
func (p *pair) discard(v user.Volume) {
	err := p.home.Client.CoreV1().PersistentVolumes().Delete(user.CleanupContext(p.t), v.Virtual.Name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		p.t.Error(err)
	}
}

// waitCondition waits until the condition TwinReady of the claim is as wanted; what describes that.
func (p *pair) waitCondition(claim, what string, wanted func(corev1.PersistentVolumeClaimCondition) bool) {
	p.t.Helper()
	p.home.Eventually("TwinReady of claim "+claim+" has "+what, func(ctx context.Context) (string, error) {
		found, err := p.home.Client.CoreV1().PersistentVolumeClaims(p.home.Name).Get(ctx, claim, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		for _, condition := range found.Status.Conditions {
			if condition.Type == "storage.liqo.io/TwinReady" && wanted(condition) {
				p.t.Logf("TwinReady of claim %s is %s %s: %s", claim, condition.Status, condition.Reason, condition.Message)
				return "", nil
			}
		}
		return fmt.Sprintf("the conditions are %v", found.Status.Conditions), nil
	})
}

func hasReason(reason string) func(corev1.PersistentVolumeClaimCondition) bool {
	return func(condition corev1.PersistentVolumeClaimCondition) bool { return condition.Reason == reason }
}
