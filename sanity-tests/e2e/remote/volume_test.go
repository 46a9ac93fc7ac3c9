package remote

import (
	"context"
	"fmt"
	"strings"
	"testing"

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

// pair is a namespace at home and its remote namespace, with the virtual node and the RemoteCluster.
type pair struct {
	t             *testing.T
	home, remote  *user.Namespace
	node, cluster string
}

// waitVolume waits until a claim and its twin are Bound, and returns all objects of the volume.
func (p *pair) waitVolume(claim string) user.Volume {
	p.t.Helper()
	return p.home.WaitRemoteVolume(p.remote, claim)
}

// waitCondition waits for the condition TwinReady of a claim.
func (p *pair) waitCondition(claim string, status corev1.ConditionStatus, reason string) {
	p.t.Helper()
	p.home.Eventually(fmt.Sprintf("TwinReady of claim %s is %s, %s", claim, status, reason), func(ctx context.Context) (string, error) {
		found, err := p.home.Client.CoreV1().PersistentVolumeClaims(p.home.Name).Get(ctx, claim, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		for _, condition := range found.Status.Conditions {
			if condition.Type == twinReady && condition.Status == status && condition.Reason == reason {
				return "", nil
			}
		}
		return fmt.Sprintf("its conditions are %v", found.Status.Conditions), nil
	})
}

func (p *pair) deleteClaim(name string) {
	p.t.Helper()
	claim := p.home.GetClaim(name)
	if err := p.home.Client.CoreV1().PersistentVolumeClaims(p.home.Name).Delete(p.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		p.t.Fatal(err)
	}
	p.home.Eventually("claim "+name+" is deleted", func(ctx context.Context) (string, error) {
		found, err := p.home.Client.CoreV1().PersistentVolumeClaims(p.home.Name).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && found.UID != claim.UID {
			return "", nil
		}
		return "it still exists", err
	})
}

// waitVolumeDeleted waits until all objects and the data of a volume are deleted.
func (p *pair) waitVolumeDeleted(v user.Volume) {
	p.t.Helper()
	p.home.Eventually("nothing of claim "+v.Claim.Name+" is left", func(ctx context.Context) (string, error) {
		var left []string
		home, remote := p.home.Client.CoreV1().PersistentVolumes(), p.remote.Client.CoreV1().PersistentVolumes()
		for what, get := range map[string]func() error{
			"its volume":          func() error { _, err := home.Get(ctx, v.Virtual.Name, metav1.GetOptions{}); return err },
			"its twin's volume":   func() error { _, err := remote.Get(ctx, v.Real.Name, metav1.GetOptions{}); return err },
			"its twin":            func() error { _, err := p.twin(ctx, v.Claim.Name); return err },
			"the data in storage": func() error { return p.data(v) },
		} {
			if err := get(); err == nil {
				left = append(left, what)
			} else if !apierrors.IsNotFound(err) {
				return "", err
			}
		}
		return strings.Join(left, ", "), nil
	})
}

// data returns NotFound if the remote storage has no data of a volume.
func (p *pair) data(v user.Volume) error {
	volumes, err := storage.BackendOf(p.remote.Cluster, storage.Reference).Volumes()
	if err != nil {
		return err
	}
	for _, one := range volumes {
		if v.Real.Spec.CSI != nil && one.ID == v.Real.Spec.CSI.VolumeHandle {
			return nil
		}
	}
	return apierrors.NewNotFound(corev1.Resource("volume"), v.Real.Name)
}

func (p *pair) twin(ctx context.Context, name string) (*corev1.PersistentVolumeClaim, error) {
	return p.remote.Client.CoreV1().PersistentVolumeClaims(p.remote.Name).Get(ctx, name, metav1.GetOptions{})
}

// wantNoTwins checks at the end of a test, after the home namespace and its volumes are deleted, that no
// twin is left.
func (p *pair) wantNoTwins() {
	twins, err := p.remote.Client.CoreV1().PersistentVolumeClaims(p.remote.Name).List(user.CleanupContext(p.t), metav1.ListOptions{LabelSelector: homeLabel})
	if err != nil {
		p.t.Error(err)
		return
	}
	for _, twin := range twins.Items {
		user.Violated(p.t, "twin %s (%s) is left without its claim", twin.Name, twin.Status.Phase)
	}
}

// homeID returns the id of the home cluster from the label of a real node.
func (p *pair) homeID() string {
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

// missingMarks describes which marks a virtual node lacks.
func missingMarks(ctx context.Context, client kubernetes.Interface, node, cluster string) (string, error) {
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

// createUnavailable makes the creation of volumes fail, and csi-provisioner retry.
var createUnavailable = storage.Fault{RPC: "CreateVolume", Code: "Unavailable", Message: "not yet"}

// addFault adds a fault of the reference driver for all twins of the test.
func (p *pair) addFault(fault storage.Fault) (remove func()) {
	p.t.Helper()
	return p.addDriverFault(storage.Reference, fault)
}

func (p *pair) addDriverFault(driver storage.Driver, fault storage.Fault) (remove func()) {
	fault.Match = p.remote.Name + "/"
	return p.remote.AddFault(driver, fault)
}
