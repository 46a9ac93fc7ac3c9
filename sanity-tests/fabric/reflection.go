package fabric

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Labels and annotations of remote pods: their fabric and their home pod.
const (
	NodeLabel     = "fabric.storage.test/node"
	HomeLabel     = "fabric.storage.test/home"
	PodAnnotation = "fabric.storage.test/pod"
	UIDAnnotation = "fabric.storage.test/uid"
)

// tokenVolume is the prefix of the name of the volume with the token of the service account, which
// does not exist in the remote cluster.
const tokenVolume = "kube-api-access-"

func marks(o Options) map[string]string {
	return map[string]string{NodeLabel: o.Node, HomeLabel: o.Home.Name()}
}

func isCopyOf(remote, home *corev1.Pod) bool {
	return remote.Annotations[UIDAnnotation] == string(home.UID)
}

// copyOf returns the remote pod of a home pod: with its containers and volumes, and without its
// scheduling and its identity.
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
	clearScheduling(&pod.Spec)
	pod.Spec.NodeName = o.RemoteNode
	clearIdentity(&pod.Spec)
	return pod
}

func clearScheduling(spec *corev1.PodSpec) {
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
	// Controllers of the home cluster set these.
	spec.ReadinessGates = nil
}

func clearIdentity(spec *corev1.PodSpec) {
	spec.ServiceAccountName = ""
	spec.DeprecatedServiceAccount = ""
	spec.AutomountServiceAccountToken = new(bool)
	spec.EphemeralContainers = nil // not allowed in Create
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

// reflectedStatus returns the home pod's status from that of its copy.
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

// pendingStatus returns the status of a home pod without a copy.
func pendingStatus(home *corev1.Pod, reason, message string) corev1.PodStatus {
	status := corev1.PodStatus{Phase: corev1.PodPending, Reason: reason, Message: message, Conditions: ownConditions(home, nil)}
	keepOwn(&status, home)
	return status
}

// keepOwn sets the fields that the home cluster owns.
func keepOwn(status *corev1.PodStatus, home *corev1.Pod) {
	status.ObservedGeneration = home.Generation
	status.QOSClass = home.Status.QOSClass
	status.NominatedNodeName = home.Status.NominatedNodeName
	status.ResourceClaimStatuses = home.Status.ResourceClaimStatuses
}

// ownConditions returns those that the home cluster owns: PodScheduled, and those that are neither
// kubelet's nor among the remote conditions.
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
		case !slices.Contains(kubeletConditions, condition.Type) && !slices.ContainsFunc(remote, reflected):
			own = append(own, condition)
		}
	}
	return append(own, scheduled)
}

// kubeletConditions are those that only kubelet sets.
var kubeletConditions = []corev1.PodConditionType{
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
