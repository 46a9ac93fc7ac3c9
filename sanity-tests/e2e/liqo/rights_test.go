package liqo

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/liqo"
	"storage.liqo.io/sanity-tests/machine"
)

// This file is about what Liqo's identity may do in the remote cluster.

// cannotChange is how `liqo-csi clusters` begins to say what it costs that PVs there
// cannot be changed.
const cannotChange = "PersistentVolumes cannot be changed"

// Levels of rights. The least are those that Liqo gives its virtual kubelet, the others
// are granted besides, as docs/remote/liqo.md says.
const (
	asLiqoMadeIt = ""
	namespaced   = "namespaced"
	full         = "full"
)

// The installation of the chart that grants rights.
const grantRelease, grantNamespace = "grant", "liqo-csi-grant"

// grant renders the remote side of the driver's chart for the group of Liqo's
// identities, and waits until the driver knows. It also waits for rights of an earlier
// test to be gone.
func (p *pair) grant(level string) {
	p.t.Helper()
	if level == asLiqoMadeIt {
		p.waitLimits("what Liqo's identity costs is said", func(limits []string) bool {
			return has(limits, cannotChange) && has(limits, "storage classes cannot be read")
		})
		return
	}
	helm, err := grantHelm(p.t.Context(), p.remote.Cluster)
	if err != nil {
		p.t.Fatal(err)
	}
	access := chart.Values{
		"only": true, "level": level,
		"subjects": []chart.Values{{"kind": "Group", "name": liqo.HomeID}},
	}
	if level != full { // which is for all namespaces
		access["namespaces"] = []string{p.remote.Name}
	}
	if err := helm.Install(p.t.Context(), grantRelease, grantNamespace, chart.Values{"remoteAccess": access}); err != nil {
		p.t.Fatal(err)
	}
	p.waitLimits("the driver may change PersistentVolumes", func(limits []string) bool { return !has(limits, cannotChange) })
}

// revoke takes back what was granted, if anything was.
func revoke(t *testing.T, remote *clusters.Cluster) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), user.Timeout)
	defer cancel()
	if err := errors.Join(uninstallGrant(ctx, remote), deleteNamespace(ctx, remote, grantNamespace)); err != nil {
		t.Error(err)
	}
}

func uninstallGrant(ctx context.Context, remote *clusters.Cluster) error {
	helm, err := grantHelm(ctx, remote)
	if err != nil {
		return err
	}
	return helm.Uninstall(ctx, grantRelease, grantNamespace)
}

func grantHelm(ctx context.Context, remote *clusters.Cluster) (*chart.Helm, error) {
	helm, err := chart.New(ctx)
	if err != nil {
		return nil, err
	}
	helm.Kubeconfig = remote.Kubeconfig()
	return helm, nil
}

func deleteNamespace(ctx context.Context, cluster *clusters.Cluster, name string) error {
	client, err := cluster.Client()
	if err != nil {
		return err
	}
	return machine.Until(ctx, "namespace "+name+" to end", func() error {
		err := client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return cmp.Or(err, errors.New("it is still there"))
	})
}

func has(limits []string, beginning string) bool {
	return slices.ContainsFunc(limits, func(limit string) bool { return strings.HasPrefix(limit, beginning) })
}

// waitLimits waits for what the driver says about its rights in Liqo's cluster.
func (p *pair) waitLimits(what string, wanted func(limits []string) bool) {
	p.t.Helper()
	program, err := driver.Compile(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	p.home.Eventually(what, func(ctx context.Context) (string, error) {
		out, err := exec.CommandContext(ctx, program, "clusters", "--output", "json", "--kubeconfig", p.home.Cluster.Kubeconfig()).Output()
		if err != nil {
			return "", fmt.Errorf("liqo-csi clusters: %w: %s", err, out)
		}
		var shown struct {
			Clusters []struct {
				ID, State, Message string
				Limits             []string
			}
		}
		if err := json.Unmarshal(out, &shown); err != nil {
			return "", fmt.Errorf("read what liqo-csi clusters says: %w", err)
		}
		for _, cluster := range shown.Clusters {
			if cluster.ID == liqo.RemoteID && cluster.State == "Ready" && wanted(cluster.Limits) {
				return "", nil
			}
		}
		return fmt.Sprintf("shown is %+v", shown.Clusters), nil
	})
}

// Liqo's identity suffices for a class that is named, and its virtual kubelet carries
// the pods onto the twin.
func TestLiqosOwnIdentitySuffices(t *testing.T) {
	p := offloaded(t, asLiqoMadeIt)
	// Of class liqo, which names no real class; Liqo's own annotation does.
	p.home.Claim("data", "liqo", "64Mi", annotated("liqo.io/remote-storage-class", allowedClass))
	p.writes("first", "data", "precious")
	p.wantCarriedByLiqo("first")

	found := p.home.WaitRemoteVolume(p.remote, "data")
	if class := *found.Twin.Spec.StorageClassName; class != allowedClass {
		t.Errorf("the twin is of class %s, not of the one that Liqo's annotation names", class)
	}
	if found.Twin.Annotations["storage.liqo.io/claim-uid"] != string(found.Claim.UID) {
		t.Errorf("the twin does not say whose it is: %v", found.Twin.Annotations)
	}
	wantGravity(t, found)
	p.condition("data", "TwinBound", because("TwinBound"))

	p.home.DeletePod("first")
	p.home.Pod("second", "data", there)
	p.home.WaitReady("second")
	p.wantRead("second", "precious")

	p.home.Claim("kept", "liqo-retain", "64Mi")
	p.home.Pod("kept", "kept", there)
	p.home.WaitEvent("kept", "RetainNotApplied", liqo.RemoteID, "may not change PersistentVolumes")
	p.home.WaitReady("kept")
	kept := p.home.WaitRemoteVolume(p.remote, "kept")
	t.Cleanup(func() { p.discard(kept) })
	p.home.DeletePod("kept")
	p.deleteClaim("kept")

	p.home.DeletePod("second")
	p.deleteClaim("data")
	p.wantGone(found)
}

// Which class is the default there Liqo's identity cannot know. That is the fault of the
// claim that names none, and of no other: the virtual node stays open to those beside it.
func TestUnnamedClaimDoesNotCloseTheClusterToOthers(t *testing.T) {
	p := offloaded(t, asLiqoMadeIt)
	p.home.Claim("unnamed", "liqo", "64Mi")
	p.home.Pod("unnamed", "unnamed", there)
	p.home.WaitEvent("unnamed", "ProvisioningFailed", "may not read the classes of the cluster "+liqo.RemoteID, "has to be named")

	const beside = 3
	for i := range beside {
		claim := fmt.Sprintf("named-%d", i)
		p.home.Claim(claim, "liqo", "128Mi", annotated("storage.liqo.io/real-storage-class", allowedClass))
		p.home.Pod(claim, claim, there)
	}
	for i := range beside {
		claim := fmt.Sprintf("named-%d", i)
		p.home.WaitReady(claim)
		p.home.WantNoEvent(claim, "FailedScheduling", "did not have enough free storage")
	}

	if phase := p.claim("unnamed").Status.Phase; phase != corev1.ClaimPending {
		t.Errorf("the claim that names no class is %s", phase)
	}
}
