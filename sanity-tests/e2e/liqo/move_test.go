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

// With no more than Liqo gives its virtual kubelet, which may not make pods, a volume in use moves
// to Liqo's cluster and back.
func TestMoveThereAndBackWithTheRightsThatLiqoGives(t *testing.T) {
	p := offloaded(t, asLiqoMadeIt)
	if err := driver.ImportImage(t.Context(), p.remote.Cluster); err != nil {
		t.Fatal(err)
	}
	here := p.home.Cluster.Nodes()[0].Name
	p.home.Claim("data", "liqo-reference", "64Mi")
	p.home.Pod("writer", "data", user.OnNode(here))
	p.home.WaitReady("writer")
	p.home.Exec("writer", "echo moved > /data/file; sync")
	p.home.DeletePod("writer")
	pod, uid := p.home.StatefulSet("user", "data"), p.claim("data").UID
	p.home.WaitReady(pod)

	p.move("there", "target: {nodeName: "+liqo.RemoteID+", storageClassName: "+allowedClass+"}", "target")
	p.home.WaitRunningOn(pod, liqo.RemoteID)
	p.remote.WaitReady(pod)
	p.wantRead(pod, "moved")

	p.remote.Exec(pod, "echo back > /data/file; sync")
	p.move("back", "target: {nodeName: "+here+"}, acceptLoss: [LiveWrites]", "source")
	p.home.WaitReady(pod)
	if got := p.home.Exec(pod, "cat /data/file"); got != "back" {
		user.Violated(t, "at home there is %q", got)
	}
	if now := p.claim("data").UID; now != uid {
		t.Errorf("the claim has the uid %s now, and had %s", now, uid)
	}
	p.home.DeleteStatefulSet("user")
}

// move moves the volume, of which one side is in Liqo's cluster, and releases where it was. Before
// the users go, it looks at the mover there.
func (p *pair) move(name, target, side string) {
	p.t.Helper()
	p.home.Move(name, "data", target+", quiesce: {mode: Evict}, cutover: {mode: Manual}")
	p.home.WaitMove(name, "Ready")
	p.home.Eventually("the mover there is a pod of Liqo's", func(ctx context.Context) (string, error) {
		found, err := p.remote.Client.CoreV1().Pods(p.remote.Name).List(ctx, metav1.ListOptions{LabelSelector: "storage.liqo.io/move-side=" + side})
		if err != nil || len(found.Items) != 1 {
			return fmt.Sprintf("there are %d", len(found.Items)), err
		}
		if owner := metav1.GetControllerOf(&found.Items[0]); owner == nil || owner.Kind != "ShadowPod" {
			return fmt.Sprintf("it belongs to %v", owner), nil
		}
		return "", nil
	})
	p.home.PatchMove(name, `{"cutover":{"requested":true}}`)
	p.home.WaitMove(name, "Retaining")
	if out, err := p.home.Kubectl("delete", "volumemove", name); err != nil {
		p.t.Fatalf("%v: %s", err, out)
	}
}
