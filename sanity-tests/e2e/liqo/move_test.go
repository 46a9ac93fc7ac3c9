package liqo

import (
	"context"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/liqo"
)

// A volume in use moves to the remote cluster and back with the rights of Liqo's virtual kubelet, which may not create
// pods.
func TestMoveThereAndBackWithLiqosOwnIdentity(t *testing.T) {
	p := newOffloadedPair(t, liqoOnly)
	if err := driver.ImportImage(t.Context(), p.remote.Cluster); err != nil {
		t.Fatal(err)
	}
	homeNode := p.home.Cluster.Nodes()[0].Name
	p.home.Claim("data", "liqo-reference", "64Mi")
	p.home.Pod("writer", "data", user.OnNode(homeNode))
	p.home.WaitReady("writer")
	p.home.Exec("writer", "echo moved > /data/file; sync")
	p.home.DeletePod("writer")
	pod, uid := p.home.StatefulSet("user", "data"), p.home.GetClaim("data").UID
	p.home.WaitReady(pod)

	p.move("to-remote", "target: {nodeName: "+liqo.RemoteID+", storageClassName: "+allowedClass+"}", "target")
	p.home.WaitRunningOn(pod, liqo.RemoteID)
	p.remote.WaitReady(pod)
	p.wantRead(pod, "moved")

	p.remote.Exec(pod, "echo changed > /data/file; sync")
	p.move("to-home", "target: {nodeName: "+homeNode+"}, acceptLoss: [LiveWrites]", "source")
	p.home.WaitReady(pod)
	if got := p.home.Exec(pod, "cat /data/file"); got != "changed" {
		user.Violated(t, "at home the pod reads %q", got)
	}
	if now := p.home.GetClaim("data").UID; now != uid {
		t.Errorf("the UID of the claim is %s, and was %s", now, uid)
	}
	p.home.DeleteStatefulSet("user")
}

// move moves the volume and deletes the move, so that the source is released. Before the cutover it checks that the
// mover on this side, in the remote cluster, is a pod of Liqo.
func (p *pair) move(name, target, side string) {
	p.t.Helper()
	p.home.Move(name, "data", target+", quiesce: {mode: Evict}, cutover: {mode: Manual}")
	p.home.WaitMove(name, "Ready")
	p.home.Eventually("the remote mover is a pod of Liqo", func(ctx context.Context) (string, error) {
		found, err := p.remote.Client.CoreV1().Pods(p.remote.Name).List(ctx, metav1.ListOptions{LabelSelector: "storage.liqo.io/move-side=" + side})
		if err != nil || len(found.Items) != 1 {
			return fmt.Sprintf("there are %d movers", len(found.Items)), err
		}
		if owner := metav1.GetControllerOf(&found.Items[0]); owner == nil || owner.Kind != "ShadowPod" {
			return fmt.Sprintf("its controller is %v", owner), nil
		}
		return "", nil
	})
	p.home.PatchMove(name, `{"cutover":{"requested":true}}`)
	p.home.WaitMove(name, "Retaining")
	if out, err := p.home.Kubectl("delete", "volumemove", name); err != nil {
		p.t.Fatalf("%v: %s", err, out)
	}
}
