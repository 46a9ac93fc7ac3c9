package fabric

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Labels and annotations of remote pods. They say which fabric made a pod, and
// which home pod it is a copy of.
const (
	NodeLabel     = "fabric.storage.test/node"
	HomeLabel     = "fabric.storage.test/home"
	PodAnnotation = "fabric.storage.test/pod"
	UIDAnnotation = "fabric.storage.test/uid"
)

// tokenVolume begins the name of the volume that every home pod gets for its
// service account: that account is not one of the remote cluster.
const tokenVolume = "kube-api-access-"

func marks(o Options) map[string]string {
	return map[string]string{NodeLabel: o.Node, HomeLabel: o.Home.Name()}
}

func isCopyOf(remote, home *corev1.Pod) bool {
	return remote.Annotations[UIDAnnotation] == string(home.UID)
}

// copyOf is the remote pod of a home pod: all that is about its containers and
// volumes, and nothing that is about where it was scheduled and who it is.
func copyOf(home *corev1.Pod, namespace string, o Options) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: home.Name, Namespace: namespace, Labels: marks(o), Annotations: map[string]string{}},
		Spec:       *home.Spec.DeepCopy(),
	}
	maps.Copy(pod.Labels, home.Labels)
	maps.Copy(pod.Labels, marks(o))
	maps.Copy(pod.Annotations, home.Annotations)
	pod.Annotations[PodAnnotation] = home.Namespace + "/" + home.Name
	pod.Annotations[UIDAnnotation] = string(home.UID)
	forgetPlace(&pod.Spec)
	pod.Spec.NodeName = o.RemoteNode
	forgetIdentity(&pod.Spec)
	return pod
}

func forgetPlace(spec *corev1.PodSpec) {
	spec.NodeName = ""
	spec.NodeSelector = nil
	spec.Affinity = nil
	spec.Tolerations = nil
	spec.TopologySpreadConstraints = nil
	spec.SchedulerName = ""
	spec.SchedulingGates = nil
	spec.SchedulingGroup = nil
	spec.Priority = nil
	spec.PriorityClassName = ""
	spec.PreemptionPolicy = nil
	spec.RuntimeClassName = nil
	spec.Overhead = nil
	// Controllers of the home cluster answer these, not kubelet.
	spec.ReadinessGates = nil
}

func forgetIdentity(spec *corev1.PodSpec) {
	spec.ServiceAccountName = ""
	spec.DeprecatedServiceAccount = ""
	spec.AutomountServiceAccountToken = new(bool)
	spec.EphemeralContainers = nil // no pod may be made with any
	spec.Volumes = slices.DeleteFunc(spec.Volumes, func(volume corev1.Volume) bool {
		return volume.Projected != nil && strings.HasPrefix(volume.Name, tokenVolume)
	})
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			containers[i].VolumeMounts = slices.DeleteFunc(containers[i].VolumeMounts, func(mount corev1.VolumeMount) bool {
				return strings.HasPrefix(mount.Name, tokenVolume)
			})
		}
	}
}

// reflectedStatus is the home pod's status as its copy has it.
func reflectedStatus(home, remote *corev1.Pod, cluster string) corev1.PodStatus {
	status := *remote.Status.DeepCopy()
	status.Conditions = ownConditions(home, remote.Status.Conditions)
	keepOwn(&status, home)
	for _, condition := range remote.Status.Conditions {
		unscheduled := condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse
		if unscheduled && status.Reason == "" {
			status.Reason, status.Message = condition.Reason, "in cluster "+cluster+": "+condition.Message
		}
		if condition.Type != corev1.PodScheduled {
			condition.ObservedGeneration = home.Generation
			status.Conditions = append(status.Conditions, condition)
		}
	}
	return status
}

// pendingStatus is the status of a home pod that has no copy.
func pendingStatus(home *corev1.Pod, reason, message string) corev1.PodStatus {
	status := corev1.PodStatus{Phase: corev1.PodPending, Reason: reason, Message: message, Conditions: ownConditions(home, nil)}
	keepOwn(&status, home)
	return status
}

// keepOwn sets the fields that are the home cluster's to say.
func keepOwn(status *corev1.PodStatus, home *corev1.Pod) {
	status.ObservedGeneration = home.Generation
	status.QOSClass = home.Status.QOSClass
	status.NominatedNodeName = home.Status.NominatedNodeName
	status.ResourceClaimStatuses = home.Status.ResourceClaimStatuses
}

// ownConditions are those that are the home cluster's to say: that the pod is
// scheduled, and what is neither kubelet's nor among the remote conditions.
func ownConditions(home *corev1.Pod, remote []corev1.PodCondition) []corev1.PodCondition {
	scheduled := corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: home.CreationTimestamp,
	}
	var own []corev1.PodCondition
	for _, condition := range home.Status.Conditions {
		reflected := func(other corev1.PodCondition) bool { return other.Type == condition.Type }
		switch {
		case condition.Type == corev1.PodScheduled:
			if condition.Status == corev1.ConditionTrue {
				scheduled = condition
			}
		case !slices.Contains(kubelets, condition.Type) && !slices.ContainsFunc(remote, reflected):
			own = append(own, condition)
		}
	}
	return append(own, scheduled)
}

// kubelets are the conditions only kubelet sets.
var kubelets = []corev1.PodConditionType{
	corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady,
	corev1.PodResizePending, corev1.PodResizeInProgress,
}

func ofDaemonSet(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	return owner != nil && owner.Kind == "DaemonSet"
}

func hasEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}
