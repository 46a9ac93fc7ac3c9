package main

import (
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"storage.liqo.io/sanity-tests/images"
)

// diarySet returns a StatefulSet with two pods on two nodes, which prefer different clusters. Each
// writes a line into its volume when it starts.
func diarySet() *appsv1.StatefulSet {
	labels := map[string]string{"app": diary}
	return &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: diary},
		Spec: appsv1.StatefulSetSpec{
			Replicas: new(int32(replicas)),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       diarySpec(labels),
			},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{
				ObjectMeta: metav1.ObjectMeta{Name: "pages"},
				Spec: corev1.PersistentVolumeClaimSpec{
					StorageClassName: new(class),
					AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
					Resources: corev1.VolumeResourceRequirements{
						Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")},
					},
				},
			}},
		},
	}
}

func diarySpec(labels map[string]string) corev1.PodSpec {
	siblings := &metav1.LabelSelector{MatchLabels: labels}
	return corev1.PodSpec{
		DNSPolicy: corev1.DNSDefault,
		// More than zero, so that the home pod is deleted only when its containers have ended.
		TerminationGracePeriodSeconds: new(int64(2)),
		Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
				{LabelSelector: siblings, TopologyKey: corev1.LabelHostname},
			},
		}},
		// Only preferred: later, its volume keeps a pod in its cluster.
		TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{
			LabelSelector: siblings, TopologyKey: clusterKey, MaxSkew: 1, WhenUnsatisfiable: corev1.ScheduleAnyway,
		}},
		Containers: []corev1.Container{{
			Name: "writer", Image: images.BusyboxName, ImagePullPolicy: corev1.PullIfNotPresent,
			Env: []corev1.EnvVar{variable("POD_UID", "metadata.uid"), variable("NODE", "spec.nodeName")},
			Command: []string{"sh", "-c",
				`echo "$(date -u +%T) written on node $NODE by pod ${POD_UID%%-*}" >> /pages/diary; exec sleep 2147483647`},
			VolumeMounts: []corev1.VolumeMount{{Name: "pages", MountPath: "/pages"}},
		}},
	}
}

func variable(name, field string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: field}}}
}

func realSource(volume *corev1.PersistentVolume) string {
	if csi := volume.Spec.CSI; csi != nil {
		return fmt.Sprintf("the driver %s, which calls it %s", csi.Driver, csi.VolumeHandle)
	}
	return "no CSI driver"
}

// gravity returns the nodes on which later pods with the volume may run.
func gravity(volume *corev1.PersistentVolume) string {
	if volume.Spec.NodeAffinity == nil || volume.Spec.NodeAffinity.Required == nil {
		return "none: reachable from everywhere"
	}
	var terms []string
	for _, term := range volume.Spec.NodeAffinity.Required.NodeSelectorTerms {
		var wanted []string
		for _, expression := range term.MatchExpressions {
			wanted = append(wanted, fmt.Sprintf("%s %s %s", expression.Key, expression.Operator, strings.Join(expression.Values, ",")))
		}
		terms = append(terms, strings.Join(wanted, " and "))
	}
	return "later pods go where " + strings.Join(terms, ", or ")
}

func short(uid types.UID) string {
	head, _, _ := strings.Cut(string(uid), "-")
	return head
}
