package driver

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/machine"
	"storage.liqo.io/sanity-tests/storage"
)

func TestDeletingAClaimDeletesEverything(t *testing.T) {
	t.Parallel()
	for _, class := range []string{"liqo-reference", "liqo-reference-attach", "liqo-local-path"} {
		t.Run(class, func(t *testing.T) {
			n := home(t)
			n.Claim("data", class, "64Mi")
			n.Pod("user", "data")
			n.WaitReady("user")
			found := n.WaitVolume("data")
			n.DeletePod("user")
			deleteClaim(t, n, "data")
			wantGone(t, n, found)
		})
	}
}

func TestRetainKeepsTheData(t *testing.T) {
	kept := discardAfter(t)
	n := home(t)
	n.Claim("precious", "liqo-retain", "64Mi")
	n.Pod("user", "precious")
	n.WaitReady("user")
	found := n.WaitVolume("precious")
	n.Eventually("the real volume is kept", func(ctx context.Context) (string, error) {
		real, err := n.Client.CoreV1().PersistentVolumes().Get(ctx, found.Real.Name, metav1.GetOptions{})
		if err != nil || real.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain {
			return "", err
		}
		return "its reclaim policy is " + string(real.Spec.PersistentVolumeReclaimPolicy), nil
	})
	n.DeletePod("user")
	*kept = found
	deleteClaim(t, n, "precious")
	n.Eventually("the volume is released", func(ctx context.Context) (string, error) {
		object, err := n.Client.CoreV1().PersistentVolumes().Get(ctx, found.Virtual.Name, metav1.GetOptions{})
		if err != nil || object.Status.Phase == corev1.VolumeReleased {
			return "", err
		}
		return "it is " + string(object.Status.Phase), nil
	})
	if _, err := storage.BackendOf(n.Cluster, storage.Reference).Volume(found.Real.Spec.CSI.VolumeHandle); err != nil {
		user.Violated(t, "the data of a retained volume: %v", err)
	}
}

// A StatefulSet gives a new claim the name of one that is still being provisioned.
func TestClaimMadeAgainUnderItsNameWhileProvisioning(t *testing.T) {
	n := home(t)
	node := n.Cluster.Nodes()[0].Name
	n.Claim("data", "liqo-reference", "64Mi")
	first := claimOf(t, n, "data")
	heal := spoilTwin(t, n, first, storage.Reference, storage.Fault{RPC: "CreateVolume", Hang: true})
	selectNode(t, n, "data", node)
	n.Eventually("the first claim has a twin", func(ctx context.Context) (string, error) {
		_, err := n.Client.CoreV1().PersistentVolumeClaims(chart.StorageNamespace).Get(ctx, string(first.UID), metav1.GetOptions{})
		return "", err
	})
	deleteClaim(t, n, "data")
	n.Claim("data", "liqo-reference", "64Mi")
	n.Pod("user", "data", user.OnNode(node))
	n.WaitReady("user")
	if second := n.WaitVolume("data"); second.Twin.Name == string(first.UID) {
		user.Violated(t, "the second claim has the twin of the first")
	}
	heal()
	n.Eventually("nothing of the first claim is left", func(ctx context.Context) (string, error) {
		return left(ctx, n, string(first.UID), "pvc-"+string(first.UID))
	})
}

func TestForeignObjectInTheTwinsPlaceIsLeftAlone(t *testing.T) {
	n := home(t)
	n.Claim("data", "liqo-reference", "64Mi")
	name := string(claimOf(t, n, "data").UID)
	twins := n.Client.CoreV1().PersistentVolumeClaims(chart.StorageNamespace)
	foreign := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"owner": "somebody"}},
		Spec:       spec("reference"),
	}
	foreign, err := twins.Create(t.Context(), foreign, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n.Pod("user", "data")
	n.WaitEvent("data", name)
	seen, err := twins.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	if err != nil || seen.UID != foreign.UID || seen.Labels["owner"] != "somebody" || len(seen.Labels) != 1 || len(seen.Finalizers) > 1 {
		user.Violated(t, "the foreign object was touched: %v, %v", seen, err)
	}
	if err := twins.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	n.WaitReady("user")
}

func TestWhatATwinInheritsFromItsClaim(t *testing.T) {
	n := home(t)
	spoof := map[string]string{
		"volume.beta.kubernetes.io/storage-class":     "liqo-reference",
		"argocd.argoproj.io/tracking-id":              "app:/PersistentVolumeClaim:x/y",
		"meta.helm.sh/release-name":                   "release",
		"applyset.kubernetes.io/part-of":              "set",
		"kustomize.toolkit.fluxcd.io/name":            "flux",
		"storage.liqo.io/home-cluster":                "somewhere-else",
		"storage.liqo.io/claim-uid":                   "forged",
		"storage.liqo.io/handed-over":                 "true",
		"pv.kubernetes.io/bind-completed-by-nobody":   "x",
		"kubectl.kubernetes.io/last-applied-settings": "x",
	}
	n.Claim("data", "liqo-reference", "64Mi", func(claim *corev1.PersistentVolumeClaim) {
		claim.Annotations = map[string]string{"team.example.com/cost-center": "42"}
		for key, value := range spoof {
			claim.Annotations[key] = value
		}
		claim.Labels = map[string]string{"team": "blue", "app.kubernetes.io/managed-by": "Helm", "storage.liqo.io/volume": "forged"}
	})
	n.Pod("user", "data")
	n.WaitReady("user")
	found := n.WaitVolume("data")
	twin := found.Twin
	if *twin.Spec.StorageClassName != "reference" {
		t.Errorf("the twin is of class %s", *twin.Spec.StorageClassName)
	}
	if twin.Annotations["team.example.com/cost-center"] != "42" || twin.Labels["team"] != "blue" {
		t.Errorf("what is the user's own did not come along: %v %v", twin.Annotations, twin.Labels)
	}
	for key, forged := range spoof {
		if value, there := twin.Annotations[key]; there && value == forged && key != "storage.liqo.io/handed-over" {
			user.Violated(t, "the twin carries %s=%s", key, value)
		}
	}
	if twin.Labels["app.kubernetes.io/managed-by"] != driver.CSIName || twin.Labels["storage.liqo.io/volume"] == "forged" ||
		twin.Annotations["storage.liqo.io/claim-uid"] != string(found.Claim.UID) {
		user.Violated(t, "ownership was forged: %v %v", twin.Labels, twin.Annotations)
	}
}

// An administrator deletes a twin in use: nothing is lost, and it is told.
func TestTwinDeletedBehindOurBack(t *testing.T) {
	kept := discardAfter(t)
	n := home(t)
	n.Claim("data", "liqo-reference", "64Mi")
	n.Pod("user", "data")
	n.WaitReady("user")
	n.Exec("user", "echo precious > /data/file")
	found := n.WaitVolume("data")
	*kept = found
	waitRetained := n.WatchReclaimPolicy(t, found.Real, corev1.PersistentVolumeReclaimRetain)
	err := n.Client.CoreV1().PersistentVolumeClaims(chart.StorageNamespace).Delete(t.Context(), found.Twin.Name, metav1.DeleteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n.WaitEvent("data", found.Twin.Name)
	waitRetained()
	n.Eventually("another twin has the real volume, which is reclaimed as before", func(ctx context.Context) (string, error) {
		now, err := n.GetVolume(ctx, "data")
		if err != nil || now.Twin == nil || now.Real == nil {
			return "there is no twin with a volume", err
		}
		if now.Twin.UID == found.Twin.UID || now.Twin.Status.Phase != corev1.ClaimBound || now.Real.UID != found.Real.UID ||
			now.Real.Spec.PersistentVolumeReclaimPolicy != found.Real.Spec.PersistentVolumeReclaimPolicy {
			return fmt.Sprintf("twin %s is %s, with the volume %s (%s)", now.Twin.UID, now.Twin.Status.Phase, now.Real.Name,
				now.Real.Spec.PersistentVolumeReclaimPolicy), nil
		}
		return "", nil
	})
	if got := n.Exec("user", "cat /data/file"); got != "precious" {
		user.Violated(t, "read %q", got)
	}
	if _, err := storage.BackendOf(n.Cluster, storage.Reference).Volume(found.Real.Spec.CSI.VolumeHandle); err != nil {
		user.Violated(t, "the data: %v", err)
	}
}

// The real driver cannot delete, and meanwhile the controller dies: the volume
// stays until the data is really gone.
func TestRealDeletionFailsWhileTheControllerDies(t *testing.T) {
	n := homeAlone(t)
	n.Claim("data", "liqo-reference", "64Mi")
	n.Pod("user", "data")
	n.WaitReady("user")
	found := n.WaitVolume("data")
	n.DeletePod("user")
	backend := storage.BackendOf(n.Cluster, storage.Reference)
	heal, err := backend.AddFault(storage.Fault{
		RPC: "DeleteVolume", Match: found.Real.Spec.CSI.VolumeHandle, Code: "Internal", Message: "the backend is on fire",
	})
	if err != nil {
		t.Fatal(err)
	}
	deleteClaim(t, n, "data")
	n.Eventually("the real driver is asked to delete", func(context.Context) (string, error) {
		calls, err := backend.Calls(func(call storage.Call) bool {
			return call.RPC == "DeleteVolume" && call.Volume == found.Real.Spec.CSI.VolumeHandle
		})
		if len(calls) == 0 {
			return "it was not yet", err
		}
		return "", err
	})
	killControllers(t, n)
	if _, err := n.Client.CoreV1().PersistentVolumes().Get(t.Context(), found.Virtual.Name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		user.Violated(t, "the volume went before its data: %v", err)
	} else if err != nil {
		t.Error(err)
	}
	if err := heal(); err != nil {
		t.Fatal(err)
	}
	wantGone(t, n, found)
}

func killControllers(t *testing.T, n *user.Namespace) {
	t.Helper()
	now := int64(0)
	err := n.Client.CoreV1().Pods(chart.Namespace).DeleteCollection(t.Context(), metav1.DeleteOptions{GracePeriodSeconds: &now},
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=controller"})
	if err != nil {
		t.Fatal(err)
	}
}

func deleteClaim(t *testing.T, n *user.Namespace, name string) {
	t.Helper()
	claim := claimOf(t, n, name)
	if err := n.Client.CoreV1().PersistentVolumeClaims(n.Name).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	n.Eventually("claim "+name+" goes away", func(ctx context.Context) (string, error) {
		found, err := n.Client.CoreV1().PersistentVolumeClaims(n.Name).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && found.UID != claim.UID {
			return "", nil
		}
		return "it is still there", err
	})
}

// spoilTwin switches a fault on for the twin of a claim that has none yet.
func spoilTwin(t *testing.T, n *user.Namespace, claim *corev1.PersistentVolumeClaim, real storage.Driver, fault storage.Fault) (heal func()) {
	t.Helper()
	fault.Match = chart.StorageNamespace + "/" + string(claim.UID)
	remove, err := storage.BackendOf(n.Cluster, real).AddFault(fault)
	if err != nil {
		t.Fatal(err)
	}
	heal = func() {
		if err := remove(); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(heal)
	return heal
}

// selectNode does what the scheduler does for the first pod of a claim.
func selectNode(t *testing.T, n *user.Namespace, claim, node string) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{"volume.kubernetes.io/selected-node":%q}}}`, node)
	_, err := n.Client.CoreV1().PersistentVolumeClaims(n.Name).Patch(t.Context(), claim, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// wantGone waits until nothing of a volume is left, in Kubernetes and behind it.
func wantGone(t *testing.T, n *user.Namespace, v user.Volume) {
	t.Helper()
	n.Eventually("nothing of claim "+v.Claim.Name+" is left", func(ctx context.Context) (string, error) {
		remains, err := left(ctx, n, v.Twin.Name, v.Virtual.Name, v.Real.Name)
		if err != nil || remains != "" || v.Real.Spec.CSI == nil {
			return remains, err
		}
		for _, real := range storage.Drivers() {
			if real.Name != v.Real.Spec.CSI.Driver {
				continue
			}
			if _, err := storage.BackendOf(n.Cluster, real).Volume(v.Real.Spec.CSI.VolumeHandle); err == nil {
				return "the backend still has the data", nil
			}
		}
		return "", nil
	})
}

// left names those of a twin and some volumes that are still there, and the
// attachments of these volumes.
func left(ctx context.Context, n *user.Namespace, twin string, volumes ...string) (string, error) {
	var remains []string
	_, err := n.Client.CoreV1().PersistentVolumeClaims(chart.StorageNamespace).Get(ctx, twin, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		if err != nil {
			return "", err
		}
		remains = append(remains, "twin "+twin)
	}
	for _, volume := range volumes {
		object, err := n.Client.CoreV1().PersistentVolumes().Get(ctx, volume, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return "", err
		}
		remains = append(remains, fmt.Sprintf("volume %s (%s %s)", volume, object.Status.Phase, object.Status.Message))
	}
	attachments, err := n.Client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	for _, attachment := range attachments.Items {
		for _, volume := range volumes {
			if name := attachment.Spec.Source.PersistentVolumeName; name != nil && *name == volume {
				remains = append(remains, "attachment "+attachment.Name)
			}
		}
	}
	return strings.Join(remains, ", "), nil
}

// discardAfter removes, when the test and its namespace are gone, what the test
// has made the cluster keep, as an administrator would. Call it before home.
func discardAfter(t *testing.T) (kept *user.Volume) {
	t.Helper()
	kept = &user.Volume{}
	t.Cleanup(func() {
		if kept.Virtual == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), user.Timeout)
		defer cancel()
		client, err := user.Cluster(t, "home").Client()
		if err != nil {
			t.Error(err)
			return
		}
		for _, volume := range []string{kept.Virtual.Name, kept.Real.Name} {
			if err := deleteVolume(ctx, client, volume); err != nil {
				t.Errorf("discard what the test kept: %v", err)
			}
		}
	})
	return kept
}

// deleteVolume lets a released volume be deleted, and waits until it is.
func deleteVolume(ctx context.Context, client kubernetes.Interface, name string) error {
	policy := []byte(`{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`)
	volumes := client.CoreV1().PersistentVolumes()
	return machine.Until(ctx, "volume "+name+" to go", func() error {
		found, err := volumes.Patch(ctx, name, types.MergePatchType, policy, metav1.PatchOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		return fmt.Errorf("it is %s %s", found.Status.Phase, found.Status.Message)
	})
}
