package remote

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
)

func TestPodWaitsForItsCordonedNodeAndReturnsToItsData(t *testing.T) {
	p := newDedicatedPair(t, nil)
	p.startPod("user", "data", "liqo-reference")
	p.remote.Exec("user", "echo precious > /data/file && sync")

	p.patchNode(`{"spec":{"unschedulable":true}}`)
	p.home.DeletePod("user")
	p.home.Pod("user", "data") // without a node selector
	p.home.WaitEvent("user", "FailedScheduling", "unschedulable")
	pod, err := p.home.Client.CoreV1().Pods(p.home.Name).Get(t.Context(), "user", metav1.GetOptions{})
	if err != nil || pod.Status.Phase != corev1.PodPending || pod.Spec.NodeName != "" {
		t.Fatalf("the pod is %s on %q, %v", pod.Status.Phase, pod.Spec.NodeName, err)
	}
	p.waitCordonedReported("user", "data")
	p.patchNode(`{"spec":{"unschedulable":null}}`)
	p.home.WaitReady("user")
	p.remote.WaitReady("user")
	if got := p.remote.Exec("user", "cat /data/file"); got != "precious" {
		user.Violated(t, "read %q", got)
	}
}

// Each volume attracts the pods of its own cluster only.
func TestTwoRemoteClusters(t *testing.T) {
	p := newDedicatedPair(t, nil)
	for claim, node := range map[string]string{"far": p.node, "near": sharedNode} {
		p.home.Claim(claim, "liqo-reference", "64Mi")
		p.home.Pod(claim, claim, (&pair{node: node}).onVirtualNode)
	}
	for claim, cluster := range map[string]string{"far": p.cluster, "near": sharedName} {
		p.home.WaitReady(claim)
		(&pair{t: t, cluster: cluster}).wantAffinity(p.home.WaitBound(claim))
	}
}

func TestVirtualNodeIsRepaired(t *testing.T) {
	p := newDedicatedPair(t, nil)
	ctx := t.Context()
	p.patchNode(fmt.Sprintf(`{"metadata":{"labels":{%q:null,%q:null}}}`, clusterKey, virtualLabel))
	p.waitMarked()
	p.patchNode(fmt.Sprintf(`{"metadata":{"labels":{%q:"elsewhere"}}}`, clusterKey))
	p.waitMarked()
	if err := p.home.Client.StorageV1().CSINodes().Delete(ctx, p.node, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	p.waitMarked()
	csiNode, err := p.home.Client.StorageV1().CSINodes().Get(ctx, p.node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if owners := csiNode.OwnerReferences; len(owners) != 1 || owners[0].Kind != "Node" || owners[0].Name != p.node {
		t.Errorf("the owner references of the CSINode are %v", owners)
	}
}

func TestMarksOfANodeAreRemovedWithItsRemoteCluster(t *testing.T) {
	p := newDedicatedPair(t, nil)
	p.undeclare()
	p.home.Eventually("the marks of the node are removed", func(ctx context.Context) (string, error) {
		node, err := p.home.Client.CoreV1().Nodes().Get(ctx, p.node, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		for _, label := range []string{clusterKey, virtualLabel} {
			if value, ok := node.Labels[label]; ok {
				return fmt.Sprintf("it has %s=%s", label, value), nil
			}
		}
		csiNode, err := p.home.Client.StorageV1().CSINodes().Get(ctx, p.node, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		if err != nil {
			return "", err
		}
		for _, entry := range csiNode.Spec.Drivers {
			if entry.Name == driver.CSIName {
				return "its CSINode has the entry of the driver", nil
			}
		}
		return "", nil
	})
	p.declare(nil)
	p.waitMarked()
	p.startPod("user", "data", "liqo-reference")
}

func TestDriverPodsDoNotRunOnVirtualNodes(t *testing.T) {
	p := newPair(t)
	pods, err := p.home.Client.CoreV1().Pods(chart.Namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(pods.Items) < len(p.home.Cluster.Nodes()) {
		t.Errorf("only %d pods of the driver were found", len(pods.Items))
	}
	for _, pod := range pods.Items {
		if pod.Spec.NodeName == p.node {
			t.Errorf("pod %s is on the virtual node", pod.Name)
		}
	}
}

func (p *pair) patchNode(patch string) {
	p.t.Helper()
	_, err := p.home.Client.CoreV1().Nodes().Patch(p.t.Context(), p.node, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
}
