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
			startPod(n, "user", "data", class)
			found := n.WaitVolume("data")
			n.DeletePod("user")
			deleteClaim(t, n, "data")
			waitVolumeDeleted(t, n, found)
		})
	}
}

func TestRetainKeepsTheData(t *testing.T) {
	kept := deleteAtEnd(t)
	n := home(t)
	startPod(n, "user", "data", "liqo-retain")
	found := n.WaitVolume("data")
	waitReclaimPolicy(n, found, corev1.PersistentVolumeReclaimRetain)
	n.DeletePod("user")
	*kept = found
	deleteClaim(t, n, "data")
	waitReleased(n, found.Virtual.Name)
	if _, err := storage.BackendOf(n.Cluster, storage.Reference).Volume(found.Real.Spec.CSI.VolumeHandle); err != nil {
		user.Violated(t, "the data of the retained volume was deleted: %v", err)
	}
}

// A StatefulSet creates a claim with the name of one that was deleted during provisioning.
func TestClaimRecreatedDuringProvisioning(t *testing.T) {
	n := home(t)
	node := n.Cluster.Nodes()[0].Name
	n.Claim("data", "liqo-reference", "64Mi")
	first := n.GetClaim("data")
	removeFault := addTwinFault(n, first, storage.Fault{RPC: "CreateVolume", Hang: true})
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
	removeFault()
	n.Eventually("all objects of the first claim are deleted", func(ctx context.Context) (string, error) {
		return remaining(ctx, n, string(first.UID), "pvc-"+string(first.UID))
	})
}

func TestForeignObjectWithTheNameOfATwinIsKept(t *testing.T) {
	n := home(t)
	n.Claim("data", "liqo-reference", "64Mi")
	name := string(n.GetClaim("data").UID)
	twins := n.Client.CoreV1().PersistentVolumeClaims(chart.StorageNamespace)
	foreign := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"owner": "another"}},
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
	if err != nil || seen.UID != foreign.UID || seen.Labels["owner"] != "another" || len(seen.Labels) != 1 || len(seen.Finalizers) > 1 {
		user.Violated(t, "the foreign object was changed: %v, %v", seen, err)
	}
	if err := twins.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	n.WaitReady("user")
}

func TestTwinInheritsFieldsOfItsClaim(t *testing.T) {
	n := home(t)
	reserved := map[string]string{
		"volume.beta.kubernetes.io/storage-class":     "liqo-reference",
		"argocd.argoproj.io/tracking-id":              "app:/PersistentVolumeClaim:x/y",
		"meta.helm.sh/release-name":                   "release",
		"applyset.kubernetes.io/part-of":              "set",
		"kustomize.toolkit.fluxcd.io/name":            "flux",
		"storage.liqo.io/home-cluster":                "somewhere-else",
		"storage.liqo.io/claim-uid":                   "forged",
		"storage.liqo.io/handed-over":                 "true",
		"pv.kubernetes.io/bind-completed-by-test":     "x",
		"kubectl.kubernetes.io/last-applied-settings": "x",
	}
	n.Claim("data", "liqo-reference", "64Mi", func(claim *corev1.PersistentVolumeClaim) {
		claim.Annotations = map[string]string{"team.example.com/cost-center": "42"}
		for key, value := range reserved {
			claim.Annotations[key] = value
		}
		claim.Labels = map[string]string{"team": "blue", "app.kubernetes.io/managed-by": "Helm", "storage.liqo.io/volume": "forged"}
	})
	n.Pod("user", "data")
	n.WaitReady("user")
	found := n.WaitVolume("data")
	twin := found.Twin
	if *twin.Spec.StorageClassName != "reference" {
		t.Errorf("the class of the twin is %s", *twin.Spec.StorageClassName)
	}
	if twin.Annotations["team.example.com/cost-center"] != "42" || twin.Labels["team"] != "blue" {
		t.Errorf("annotations and labels of the user were not copied: %v %v", twin.Annotations, twin.Labels)
	}
	for key, forged := range reserved {
		if value, found := twin.Annotations[key]; found && value == forged && key != "storage.liqo.io/handed-over" {
			user.Violated(t, "the twin has %s=%s", key, value)
		}
	}
	if twin.Labels["app.kubernetes.io/managed-by"] != driver.CSIName || twin.Labels["storage.liqo.io/volume"] == "forged" ||
		twin.Annotations["storage.liqo.io/claim-uid"] != string(found.Claim.UID) {
		user.Violated(t, "the claim changed the ownership of its twin: %v %v", twin.Labels, twin.Annotations)
	}
}

// An administrator deletes a twin in use: an event reports it, and no data is lost.
func TestTwinDeletedByAUser(t *testing.T) {
	kept := deleteAtEnd(t)
	n := home(t)
	startPod(n, "user", "data", "liqo-reference")
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
	n.Eventually("another twin has the real volume, with its reclaim policy", func(ctx context.Context) (string, error) {
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
		user.Violated(t, "the data was deleted: %v", err)
	}
}

// The real driver cannot delete the data, and the controller is killed: the virtual volume remains until the data is
// deleted.
func TestRealDeletionFailsAndTheControllerIsKilled(t *testing.T) {
	n := homeSerial(t)
	startPod(n, "user", "data", "liqo-reference")
	found := n.WaitVolume("data")
	n.DeletePod("user")
	backend := storage.BackendOf(n.Cluster, storage.Reference)
	removeFault := n.AddFault(storage.Reference, storage.Fault{
		RPC: "DeleteVolume", Match: found.Real.Spec.CSI.VolumeHandle, Code: "Internal", Message: "the backend failed",
	})
	deleteClaim(t, n, "data")
	n.Eventually("the real driver gets DeleteVolume", func(context.Context) (string, error) {
		calls, err := backend.Calls(func(call storage.Call) bool {
			return call.RPC == "DeleteVolume" && call.Volume == found.Real.Spec.CSI.VolumeHandle
		})
		if len(calls) == 0 {
			return "it got none", err
		}
		return "", err
	})
	killControllers(t, n)
	if _, err := n.Client.CoreV1().PersistentVolumes().Get(t.Context(), found.Virtual.Name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		user.Violated(t, "the virtual volume was deleted before its data: %v", err)
	} else if err != nil {
		t.Error(err)
	}
	removeFault()
	waitVolumeDeleted(t, n, found)
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
	claim := n.GetClaim(name)
	if err := n.Client.CoreV1().PersistentVolumeClaims(n.Name).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	n.Eventually("claim "+name+" is deleted", func(ctx context.Context) (string, error) {
		found, err := n.Client.CoreV1().PersistentVolumeClaims(n.Name).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && found.UID != claim.UID {
			return "", nil
		}
		return "it still exists", err
	})
}

// addTwinFault adds a fault for the twin of a claim, which need not exist yet.
func addTwinFault(n *user.Namespace, claim *corev1.PersistentVolumeClaim, fault storage.Fault) (remove func()) {
	fault.Match = chart.StorageNamespace + "/" + string(claim.UID)
	return n.AddFault(storage.Reference, fault)
}

// selectNode selects a node for a claim, as the scheduler does for its first pod.
func selectNode(t *testing.T, n *user.Namespace, claim, node string) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{"volume.kubernetes.io/selected-node":%q}}}`, node)
	_, err := n.Client.CoreV1().PersistentVolumeClaims(n.Name).Patch(t.Context(), claim, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// waitVolumeDeleted waits until all objects of a volume and its data are deleted.
func waitVolumeDeleted(t *testing.T, n *user.Namespace, v user.Volume) {
	t.Helper()
	n.Eventually("all objects of claim "+v.Claim.Name+" are deleted", func(ctx context.Context) (string, error) {
		left, err := remaining(ctx, n, v.Twin.Name, v.Virtual.Name, v.Real.Name)
		if err != nil || left != "" || v.Real.Spec.CSI == nil {
			return left, err
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

// remaining returns which of a twin, PersistentVolumes and their attachments still exist.
func remaining(ctx context.Context, n *user.Namespace, twin string, volumes ...string) (string, error) {
	var left []string
	_, err := n.Client.CoreV1().PersistentVolumeClaims(chart.StorageNamespace).Get(ctx, twin, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		if err != nil {
			return "", err
		}
		left = append(left, "twin "+twin)
	}
	for _, volume := range volumes {
		object, err := n.Client.CoreV1().PersistentVolumes().Get(ctx, volume, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return "", err
		}
		left = append(left, fmt.Sprintf("volume %s (%s %s)", volume, object.Status.Phase, object.Status.Message))
	}
	attached, err := attachments(ctx, n, volumes...)
	return strings.Join(append(left, attached...), ", "), err
}

// deleteAtEnd deletes a retained volume after the test. Call it before home, so that the namespace is deleted first.
func deleteAtEnd(t *testing.T) (kept *user.Volume) {
	t.Helper()
	kept = &user.Volume{}
	t.Cleanup(func() {
		if kept.Virtual == nil {
			return
		}
		client, err := user.Cluster(t, "home").Client()
		if err != nil {
			t.Error(err)
			return
		}
		for _, volume := range []string{kept.Virtual.Name, kept.Real.Name} {
			if err := deleteVolume(user.CleanupContext(t), client, volume); err != nil {
				t.Errorf("delete the retained volume: %v", err)
			}
		}
	})
	return kept
}

// deleteVolume changes the reclaim policy of a Released volume to Delete, and waits until it is deleted.
func deleteVolume(ctx context.Context, client kubernetes.Interface, name string) error {
	policy := []byte(`{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`)
	volumes := client.CoreV1().PersistentVolumes()
	return machine.Until(ctx, "volume "+name+" to be deleted", func() error {
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
