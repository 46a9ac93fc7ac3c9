package fabric

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/clusters"
)

func homePod() *corev1.Pod {
	token := corev1.Volume{Name: "kube-api-access-x", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}}
	data := corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"},
	}}
	mounts := []corev1.VolumeMount{{Name: "data", MountPath: "/data"}, {Name: token.Name, MountPath: "/token"}}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "user", Namespace: "team", UID: "1", Generation: 7, ResourceVersion: "5",
			Labels: map[string]string{"app": "user"}, Annotations: map[string]string{"note": "kept"},
			OwnerReferences: []metav1.OwnerReference{{Kind: "StatefulSet", Controller: new(true)}}, Finalizers: []string{"a/b"},
		},
		Spec: corev1.PodSpec{
			NodeName: "virtual", NodeSelector: map[string]string{"a": "b"}, SchedulerName: "default-scheduler",
			ServiceAccountName: "default", Priority: new(int32), Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Volumes:        []corev1.Volume{data, token},
			InitContainers: []corev1.Container{{Name: "first", VolumeMounts: mounts}},
			Containers:     []corev1.Container{{Name: "main", Image: "image", VolumeMounts: mounts}},
		},
	}
}

func TestRemotePodHasOnlyContainersAndVolumes(t *testing.T) {
	home := homePod()
	before := home.DeepCopy()
	got := copyOf(home, "mapped", Options{Home: &clusters.Cluster{}, Node: "virtual"})
	want := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "user", Namespace: "mapped",
			Labels:      map[string]string{"app": "user", NodeLabel: "virtual", HomeLabel: ""},
			Annotations: map[string]string{"note": "kept", PodAnnotation: "team/user", UIDAnnotation: "1"},
		},
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken: new(bool),
			Volumes:                      home.Spec.Volumes[:1],
			InitContainers:               []corev1.Container{{Name: "first", VolumeMounts: home.Spec.InitContainers[0].VolumeMounts[:1]}},
			Containers:                   []corev1.Container{{Name: "main", Image: "image", VolumeMounts: home.Spec.Containers[0].VolumeMounts[:1]}},
		},
	}
	if !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
	if !equality.Semantic.DeepEqual(home, before) {
		t.Error("the home pod was changed")
	}
}

func TestReflectionIsIdempotent(t *testing.T) {
	home, remote := homePod(), &corev1.Pod{Status: corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: "10.0.0.1", HostIP: "10.0.0.2", QOSClass: corev1.PodQOSBurstable,
		Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
			{Type: corev1.PodReady, Status: corev1.ConditionTrue},
			{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue},
		},
	}}
	home.Status = corev1.PodStatus{Phase: corev1.PodPending, QOSClass: corev1.PodQOSBestEffort, Conditions: []corev1.PodCondition{
		{Type: "a/gate", Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionFalse},
	}}
	home.Status = reflectedStatus(home, remote, "remote")
	if home.Status.Phase != corev1.PodRunning || home.Status.PodIP != "10.0.0.1" || home.Status.QOSClass != corev1.PodQOSBestEffort {
		t.Errorf("status %+v", home.Status)
	}
	var kinds []corev1.PodConditionType
	for _, condition := range home.Status.Conditions {
		kinds = append(kinds, condition.Type)
	}
	want := []corev1.PodConditionType{"a/gate", corev1.PodScheduled, corev1.PodReady, corev1.DisruptionTarget}
	if !equality.Semantic.DeepEqual(kinds, want) {
		t.Errorf("conditions %v, want %v", kinds, want)
	}
	if again := reflectedStatus(home, remote, "remote"); !equality.Semantic.DeepEqual(again, home.Status) {
		t.Errorf("first %+v\nthen %+v", home.Status, again)
	}
}

func TestPodThatCannotRunReportsTheReason(t *testing.T) {
	remote := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "no room"},
	}}}
	status := reflectedStatus(homePod(), remote, "far")
	if status.Phase != corev1.PodPending || status.Reason != "Unschedulable" || status.Message != "in cluster far: no room" {
		t.Errorf("status %+v", status)
	}
	status = pendingStatus(homePod(), ReasonNamespaceNotMapped, "map it")
	if status.Phase != corev1.PodPending || status.Reason != ReasonNamespaceNotMapped || len(status.Conditions) != 1 {
		t.Errorf("status %+v", status)
	}
}
