package user

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"storage.liqo.io/sanity-tests/images"
)

// DataPath is the path of a pod's volume: a folder, or a device.
const DataPath = "/data"

// Claim creates a claim, by default ReadWriteOnce with a file system.
func (n *Namespace) Claim(name, class, size string, edits ...func(*corev1.PersistentVolumeClaim)) {
	n.t.Helper()
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
			},
		},
	}
	for _, edit := range edits {
		edit(claim)
	}
	if _, err := n.Client.CoreV1().PersistentVolumeClaims(n.Name).Create(n.t.Context(), claim, metav1.CreateOptions{}); err != nil {
		n.t.Fatalf("create claim: %v", err)
	}
}

// Block sets the volume mode Block.
func Block(claim *corev1.PersistentVolumeClaim) {
	claim.Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
}

// WithDataSource sets a claim or a snapshot as data source.
func WithDataSource(kind, name string) func(*corev1.PersistentVolumeClaim) {
	return func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: kind, Name: name}
		if kind == "VolumeSnapshot" {
			claim.Spec.DataSource.APIGroup = new("snapshot.storage.k8s.io")
		}
	}
}

// Pod creates a pod that has the claim at DataPath and sleeps.
func (n *Namespace) Pod(name, claim string, edits ...func(*corev1.Pod)) {
	n.t.Helper()
	if _, err := n.Client.CoreV1().Pods(n.Name).Create(n.t.Context(), NewPod(name, claim, edits...), metav1.CreateOptions{}); err != nil {
		n.t.Fatalf("create pod: %v", err)
	}
}

// NewPod returns the pod of Pod.
func NewPod(name, claim string, edits ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{
			DNSPolicy:                     corev1.DNSDefault,
			TerminationGracePeriodSeconds: new(int64),
			AutomountServiceAccountToken:  new(bool),
			Containers: []corev1.Container{{
				Name:            "main",
				Image:           images.BusyboxName,
				ImagePullPolicy: corev1.PullIfNotPresent,
				Command:         []string{"sleep", "2147483647"},
				VolumeMounts:    []corev1.VolumeMount{{Name: "data", MountPath: DataPath}},
			}},
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}}},
		},
	}
	for _, edit := range edits {
		edit(pod)
	}
	return pod
}

// WithDevice makes the pod use its volume as a device.
func WithDevice(pod *corev1.Pod) {
	container := &pod.Spec.Containers[0]
	container.VolumeMounts = nil
	container.VolumeDevices = []corev1.VolumeDevice{{Name: "data", DevicePath: DataPath}}
}

// OnNode makes the scheduler choose this node.
func OnNode(node string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	}
}

// PreferNode makes the scheduler choose this node if the pod can run there.
func PreferNode(node string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
				Weight: 100,
				Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}},
				}},
			}},
		}}
	}
}

// WaitReady waits until a pod is ready, and returns it.
func (n *Namespace) WaitReady(name string) *corev1.Pod {
	n.t.Helper()
	var pod *corev1.Pod
	n.Eventually("pod "+name+" becomes ready", func(ctx context.Context) (string, error) {
		var err error
		if pod, err = n.Client.CoreV1().Pods(n.Name).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return "", err
		}
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue && pod.DeletionTimestamp == nil {
				return "", nil
			}
		}
		return fmt.Sprintf("it is %s", pod.Status.Phase), nil
	})
	return pod
}

// DeletePod deletes a pod and waits until it is deleted.
func (n *Namespace) DeletePod(name string) {
	n.t.Helper()
	pod, err := n.Client.CoreV1().Pods(n.Name).Get(n.t.Context(), name, metav1.GetOptions{})
	if err == nil {
		err = n.Client.CoreV1().Pods(n.Name).Delete(n.t.Context(), name, metav1.DeleteOptions{})
	}
	if err != nil {
		n.t.Fatalf("delete pod: %v", err)
	}
	n.Eventually("pod "+name+" is deleted", func(ctx context.Context) (string, error) {
		found, err := n.Client.CoreV1().Pods(n.Name).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && found.UID != pod.UID {
			return "", nil
		}
		return "it still exists", err
	})
}

// WaitBound waits until a claim is Bound, and returns its volume.
func (n *Namespace) WaitBound(claim string) *corev1.PersistentVolume {
	n.t.Helper()
	var volume *corev1.PersistentVolume
	n.Eventually("claim "+claim+" becomes bound", func(ctx context.Context) (string, error) {
		found, err := n.Client.CoreV1().PersistentVolumeClaims(n.Name).Get(ctx, claim, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if found.Status.Phase != corev1.ClaimBound {
			return fmt.Sprintf("it is %s", found.Status.Phase), nil
		}
		volume, err = n.Client.CoreV1().PersistentVolumes().Get(ctx, found.Spec.VolumeName, metav1.GetOptions{})
		return "", err
	})
	return volume
}

// Resize changes the requested size.
func (n *Namespace) Resize(claim, size string) {
	n.t.Helper()
	n.patchClaim(claim, fmt.Sprintf(`{"spec":{"resources":{"requests":{"storage":%q}}}}`, size))
}

// SetAttributesClass changes the VolumeAttributesClass.
func (n *Namespace) SetAttributesClass(claim, class string) {
	n.t.Helper()
	n.patchClaim(claim, fmt.Sprintf(`{"spec":{"volumeAttributesClassName":%q}}`, class))
}

func (n *Namespace) patchClaim(claim, patch string) {
	n.t.Helper()
	_, err := n.Client.CoreV1().PersistentVolumeClaims(n.Name).Patch(n.t.Context(), claim, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		n.t.Fatalf("patch claim: %v", err)
	}
}

// WaitCapacity waits until the status of a claim has this size.
func (n *Namespace) WaitCapacity(claim, size string) {
	n.t.Helper()
	wanted := resource.MustParse(size)
	n.Eventually("claim "+claim+" has "+size, func(ctx context.Context) (string, error) {
		found, err := n.Client.CoreV1().PersistentVolumeClaims(n.Name).Get(ctx, claim, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if capacity := found.Status.Capacity[corev1.ResourceStorage]; capacity.Cmp(wanted) != 0 {
			return fmt.Sprintf("it has %s, %v", capacity.String(), found.Status.Conditions), nil
		}
		return "", nil
	})
}

// Snapshot creates a snapshot of a claim and waits until it is ready to use.
func (n *Namespace) Snapshot(name, claim, class string) {
	n.t.Helper()
	n.CreateSnapshot(name, claim, class)
	n.Eventually("snapshot "+name+" becomes ready", func(ctx context.Context) (string, error) {
		snapshot, err := n.Object(ctx, "volumesnapshot", name)
		if err != nil {
			return "", err
		}
		if ready, _, _ := unstructured.NestedBool(snapshot.Object, "status", "readyToUse"); ready {
			return "", nil
		}
		return fmt.Sprintf("its status is %v", snapshot.Object["status"]), nil
	})
}

// Class creates a StorageClass, and deletes it at the end of the test.
func (n *Namespace) Class(class *storagev1.StorageClass) {
	n.t.Helper()
	classes := n.Client.StorageV1().StorageClasses()
	if _, err := classes.Create(n.t.Context(), class, metav1.CreateOptions{}); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		if err := classes.Delete(CleanupContext(n.t), class.Name, metav1.DeleteOptions{}); err != nil {
			n.t.Error(err)
		}
	})
}

// StorageQuota is Quota for the requested storage of all claims.
func (n *Namespace) StorageQuota(name, most string) {
	n.t.Helper()
	n.Quota(name, corev1.ResourceRequestsStorage, most)
}

// Quota creates a ResourceQuota, and waits until it is enforced.
func (n *Namespace) Quota(name string, of corev1.ResourceName, most string) {
	n.t.Helper()
	quotas := n.Client.CoreV1().ResourceQuotas(n.Name)
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ResourceQuotaSpec{
		Hard: corev1.ResourceList{of: resource.MustParse(most)},
	}}
	if _, err := quotas.Create(n.t.Context(), quota, metav1.CreateOptions{}); err != nil {
		n.t.Fatal(err)
	}
	n.Eventually("the quota is enforced", func(ctx context.Context) (string, error) {
		found, err := quotas.Get(ctx, name, metav1.GetOptions{})
		if err != nil || len(found.Status.Hard) == 0 {
			return "it has no status", err
		}
		return "", nil
	})
}

// TryApply applies YAML with kubectl and returns its error.
func (n *Namespace) TryApply(text string) error {
	ctx, cancel := context.WithTimeout(n.t.Context(), Timeout)
	defer cancel()
	return n.apply(ctx, text)
}

// Apply applies YAML with kubectl.
func (n *Namespace) Apply(text string) {
	n.t.Helper()
	if err := n.TryApply(text); err != nil {
		n.t.Fatal(err)
	}
}

// Exec runs a script in a pod and returns its output.
func (n *Namespace) Exec(pod, script string) string {
	n.t.Helper()
	out, err := n.Kubectl("exec", pod, "--", "sh", "-c", script)
	if err != nil {
		n.t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// WaitEvent waits for an event of an object of the namespace with all of the words.
func (n *Namespace) WaitEvent(object string, words ...string) {
	n.t.Helper()
	n.Eventually(fmt.Sprintf("an event of %s with %q", object, words), func(ctx context.Context) (string, error) {
		events, err := n.eventsAbout(ctx, object)
		if err != nil {
			return "", err
		}
		if slices.ContainsFunc(events, func(text string) bool { return mentionsAll(text, words) }) {
			return "", nil
		}
		return "events: " + strings.Join(events, " | "), nil
	})
}

// WantNoEvent checks that no event of an object of the namespace has all of the words.
func (n *Namespace) WantNoEvent(object string, words ...string) {
	n.t.Helper()
	events, err := n.eventsAbout(n.t.Context(), object)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, text := range events {
		if mentionsAll(text, words) {
			n.t.Errorf("%s has the event %s", object, text)
		}
	}
}

// eventsAbout returns the events of an object, each as "reason: message".
func (n *Namespace) eventsAbout(ctx context.Context, object string) (texts []string, err error) {
	events, err := n.Client.CoreV1().Events(n.Name).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, event := range events.Items {
		if event.InvolvedObject.Name == object {
			texts = append(texts, event.Reason+": "+event.Message)
		}
	}
	return texts, nil
}

func mentionsAll(text string, words []string) bool {
	return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(text, word) })
}
