package remote

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/storage"
)

const (
	clusterKey   = "topology.storage.liqo.io/cluster"
	homeLabel    = "storage.liqo.io/home-cluster"
	volumeLabel  = "storage.liqo.io/volume"
	virtualLabel = "storage.liqo.io/virtual-node"
	claimUID     = "storage.liqo.io/claim-uid"
	selectedNode = "volume.kubernetes.io/selected-node"
	sourceAt     = "storage.liqo.io/source-at"
	twinReady    = corev1.PersistentVolumeClaimConditionType("storage.liqo.io/TwinReady")
)

// pair is a namespace here and there, and the node that stands for there.
type pair struct {
	t             *testing.T
	home, remote  *user.Namespace
	node, cluster string
}

// volume is a remote volume from the claim to the bytes.
type volume struct {
	claim  *corev1.PersistentVolumeClaim
	object *corev1.PersistentVolume
	twin   *corev1.PersistentVolumeClaim
	real   *corev1.PersistentVolume
}

// follow waits until claim and twin are bound, and finds what stands behind them.
func (p *pair) follow(claim string) volume {
	p.t.Helper()
	found := volume{object: p.home.WaitBound(claim), real: p.remote.WaitBound(claim)}
	found.claim, found.twin = claimIn(p.home, p.t, claim), claimIn(p.remote, p.t, claim)
	return found
}

func claimIn(n *user.Namespace, t *testing.T, name string) *corev1.PersistentVolumeClaim {
	t.Helper()
	claim, err := n.Client.CoreV1().PersistentVolumeClaims(n.Name).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return claim
}

// waitCondition waits until the claim says this of its twin.
func (p *pair) waitCondition(claim string, status corev1.ConditionStatus, reason string) {
	p.t.Helper()
	p.home.Eventually(fmt.Sprintf("claim %s says %s %s", claim, status, reason), func(ctx context.Context) (string, error) {
		found, err := p.home.Client.CoreV1().PersistentVolumeClaims(p.home.Name).Get(ctx, claim, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		for _, condition := range found.Status.Conditions {
			if condition.Type == twinReady && condition.Status == status && condition.Reason == reason {
				return "", nil
			}
		}
		return fmt.Sprintf("it says %v", found.Status.Conditions), nil
	})
}

func (p *pair) deleteClaim(name string) {
	p.t.Helper()
	claim := claimIn(p.home, p.t, name)
	if err := p.home.Client.CoreV1().PersistentVolumeClaims(p.home.Name).Delete(p.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		p.t.Fatal(err)
	}
	p.home.Eventually("claim "+name+" goes away", func(ctx context.Context) (string, error) {
		found, err := p.home.Client.CoreV1().PersistentVolumeClaims(p.home.Name).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && found.UID != claim.UID {
			return "", nil
		}
		return "it is still there", err
	})
}

// wantGone waits until nothing of a volume is left here, there, and behind it.
func (p *pair) wantGone(v volume) {
	p.t.Helper()
	p.home.Eventually("nothing of claim "+v.claim.Name+" is left", func(ctx context.Context) (string, error) {
		var remains []string
		here, there := p.home.Client.CoreV1().PersistentVolumes(), p.remote.Client.CoreV1().PersistentVolumes()
		for what, get := range map[string]func() error{
			"its volume":          func() error { _, err := here.Get(ctx, v.object.Name, metav1.GetOptions{}); return err },
			"its twin's volume":   func() error { _, err := there.Get(ctx, v.real.Name, metav1.GetOptions{}); return err },
			"its twin":            func() error { _, err := p.twin(ctx, v.claim.Name); return err },
			"the data in storage": func() error { return p.data(v) },
		} {
			if err := get(); err == nil {
				remains = append(remains, what)
			} else if !apierrors.IsNotFound(err) {
				return "", err
			}
		}
		return strings.Join(remains, ", "), nil
	})
}

// data is what the remote storage has of a volume, or a NotFound.
func (p *pair) data(v volume) error {
	volumes, err := storage.BackendOf(p.remote.Cluster, storage.Reference).Volumes()
	if err != nil {
		return err
	}
	for _, one := range volumes {
		if v.real.Spec.CSI != nil && one.ID == v.real.Spec.CSI.VolumeHandle {
			return nil
		}
	}
	return apierrors.NewNotFound(corev1.Resource("volume"), v.real.Name)
}

func (p *pair) twin(ctx context.Context, name string) (*corev1.PersistentVolumeClaim, error) {
	return p.remote.Client.CoreV1().PersistentVolumeClaims(p.remote.Name).Get(ctx, name, metav1.GetOptions{})
}

// wantNoTwins is for the end of a test, when the home namespace and its volumes
// are gone.
func (p *pair) wantNoTwins() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.t.Context()), time.Minute)
	defer cancel()
	twins, err := p.remote.Client.CoreV1().PersistentVolumeClaims(p.remote.Name).List(ctx, metav1.ListOptions{LabelSelector: homeLabel})
	if err != nil {
		p.t.Error(err)
		return
	}
	for _, twin := range twins.Items {
		user.Violated(p.t, "twin %s (%s) outlives its claim", twin.Name, twin.Status.Phase)
	}
}

// homeID is the id of the home cluster, as its real nodes have it.
func homeID(p *pair) string {
	p.t.Helper()
	cluster := user.Cluster(p.t, "home")
	client, err := cluster.Client()
	if err != nil {
		p.t.Fatal(err)
	}
	node, err := client.CoreV1().Nodes().Get(p.t.Context(), cluster.Nodes()[0].Name, metav1.GetOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	return node.Labels[clusterKey]
}

// unmarked says what a virtual node lacks for volumes.
func unmarked(ctx context.Context, client kubernetes.Interface, node, cluster string) (string, error) {
	object, err := client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if object.Labels[clusterKey] != cluster || object.Labels[virtualLabel] != "true" {
		return fmt.Sprintf("its labels are %v", object.Labels), nil
	}
	csiNode, err := client.StorageV1().CSINodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	for _, entry := range csiNode.Spec.Drivers {
		if entry.Name == driver.CSIName && fmt.Sprint(entry.TopologyKeys) == fmt.Sprint([]string{clusterKey}) {
			return "", nil
		}
	}
	return fmt.Sprintf("its CSINode has %v", csiNode.Spec.Drivers), nil
}

// notYet has the real driver make no volume, but try again.
var notYet = storage.Fault{RPC: "CreateVolume", Code: "Unavailable", Message: "not yet"}

// spoil switches a fault on for all twins of the test.
func (p *pair) spoil(fault storage.Fault) (heal func()) {
	p.t.Helper()
	return p.spoilDriver(storage.Reference, fault)
}

func (p *pair) spoilDriver(driver storage.Driver, fault storage.Fault) (heal func()) {
	p.t.Helper()
	fault.Match = p.remote.Name + "/"
	remove, err := storage.BackendOf(p.remote.Cluster, driver).AddFault(fault)
	if err != nil {
		p.t.Fatal(err)
	}
	heal = func() {
		if err := remove(); err != nil {
			p.t.Error(err)
		}
	}
	p.t.Cleanup(heal)
	return heal
}
