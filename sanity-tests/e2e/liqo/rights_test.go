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

// cannotChange begins the limit in `liqo-csi clusters` that PersistentVolumes cannot be changed.
const cannotChange = "PersistentVolumes cannot be changed"

// Levels of rights: only those of Liqo's virtual kubelet, or in addition those that docs/remote/liqo.md grants.
const (
	liqoOnly   = ""
	namespaced = "namespaced"
	full       = "full"
)

// Release and namespace of the chart that grants rights.
const grantRelease, grantNamespace = "grant", "liqo-csi-grant"

// grant installs the remote part of the chart for the group of Liqo's identities, and waits until the driver has
// these rights and none of an earlier test.
func (p *pair) grant(level string) {
	p.t.Helper()
	if level == liqoOnly {
		p.waitLimits("the limits of Liqo's identity are reported", func(limits []string) bool {
			return hasLimit(limits, cannotChange) && hasLimit(limits, "storage classes cannot be read")
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
	if level != full { // full is for all namespaces
		access["namespaces"] = []string{p.remote.Name}
	}
	if err := helm.Install(p.t.Context(), grantRelease, grantNamespace, chart.Values{"remoteAccess": access}); err != nil {
		p.t.Fatal(err)
	}
	p.waitLimits("the driver may change PersistentVolumes", func(limits []string) bool { return !hasLimit(limits, cannotChange) })
}

// revoke revokes the granted rights, if any.
func revoke(t *testing.T, remote *clusters.Cluster) {
	ctx := user.CleanupContext(t)
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
	return machine.Until(ctx, "namespace "+name+" to be deleted", func() error {
		err := client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return cmp.Or(err, errors.New("it still exists"))
	})
}

func hasLimit(limits []string, beginning string) bool {
	return slices.ContainsFunc(limits, func(limit string) bool { return strings.HasPrefix(limit, beginning) })
}

// waitLimits waits until the remote cluster is Ready with these limits.
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
		var output struct {
			Clusters []struct {
				ID, State, Message string
				Limits             []string
			}
		}
		if err := json.Unmarshal(out, &output); err != nil {
			return "", fmt.Errorf("parse the output of liqo-csi clusters: %w", err)
		}
		for _, cluster := range output.Clusters {
			if cluster.ID == liqo.RemoteID && cluster.State == "Ready" && wanted(cluster.Limits) {
				return "", nil
			}
		}
		return fmt.Sprintf("the clusters are %+v", output.Clusters), nil
	})
}

// Liqo's identity suffices for claims that name a real class, and for their pods.
func TestLiqosOwnIdentitySuffices(t *testing.T) {
	p := newOffloadedPair(t, liqoOnly)
	// The class liqo names no real class, Liqo's annotation does.
	p.home.Claim("data", "liqo", "64Mi", withAnnotation("liqo.io/remote-storage-class", allowedClass))
	p.startWriter("first", "data", "precious")
	p.wantShadowPod("first")

	found := p.home.WaitRemoteVolume(p.remote, "data")
	if class := *found.Twin.Spec.StorageClassName; class != allowedClass {
		t.Errorf("the class of the twin is %s, not that of Liqo's annotation", class)
	}
	if found.Twin.Annotations["storage.liqo.io/claim-uid"] != string(found.Claim.UID) {
		t.Errorf("the twin has no claim UID: %v", found.Twin.Annotations)
	}
	wantRemoteAffinity(t, found)
	p.waitCondition("data", "the reason TwinBound", hasReason("TwinBound"))

	p.home.DeletePod("first")
	p.home.Pod("second", "data", onLiqoNode)
	p.home.WaitReady("second")
	p.wantRead("second", "precious")

	p.home.Claim("kept", "liqo-retain", "64Mi")
	p.home.Pod("kept", "kept", onLiqoNode)
	p.home.WaitEvent("kept", "RetainNotApplied", liqo.RemoteID, "may not change PersistentVolumes")
	p.home.WaitReady("kept")
	kept := p.home.WaitRemoteVolume(p.remote, "kept")
	t.Cleanup(func() { p.discard(kept) })
	p.home.DeletePod("kept")
	p.deleteClaim("kept")

	p.home.DeletePod("second")
	p.deleteClaim("data")
	p.waitVolumeDeleted(found)
}

// Liqo's identity cannot read the default class of the remote cluster, so a claim that names none is not provisioned.
// Other claims still are.
func TestClaimWithoutRealClassDoesNotBlockOtherClaims(t *testing.T) {
	p := newOffloadedPair(t, liqoOnly)
	p.home.Claim("unnamed", "liqo", "64Mi")
	p.home.Pod("unnamed", "unnamed", onLiqoNode)
	p.home.WaitEvent("unnamed", "ProvisioningFailed", "may not read the classes of the cluster "+liqo.RemoteID, "has to be named")

	named := []string{"named-0", "named-1", "named-2"}
	for _, claim := range named {
		p.home.Claim(claim, "liqo", "128Mi", withAnnotation("storage.liqo.io/real-storage-class", allowedClass))
		p.home.Pod(claim, claim, onLiqoNode)
	}
	for _, claim := range named {
		p.home.WaitReady(claim)
		p.home.WantNoEvent(claim, "FailedScheduling", "did not have enough free storage")
	}

	if phase := p.home.GetClaim("unnamed").Status.Phase; phase != corev1.ClaimPending {
		t.Errorf("the claim without a class is %s", phase)
	}
}
