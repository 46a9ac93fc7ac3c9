package main

import (
	"context"
	"fmt"
	"os/exec"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"storage.liqo.io/sanity-tests/images"
)

// diarySet writes a line into its volume each time its pod starts.
func diarySet() *appsv1.StatefulSet {
	labels := map[string]string{"app": diary}
	class := "liqo"
	return &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: diary},
		Spec: appsv1.StatefulSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					DNSPolicy:                     corev1.DNSDefault,
					TerminationGracePeriodSeconds: new(int64),
					Containers: []corev1.Container{{
						Name: "writer", Image: images.BusyboxName, ImagePullPolicy: corev1.PullIfNotPresent,
						Env: []corev1.EnvVar{{Name: "POD_UID", ValueFrom: &corev1.EnvVarSource{
							FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.uid"},
						}}},
						Command: []string{"sh", "-c",
							`echo "$(date -u +%T) pod ${POD_UID%%-*} was here" >> /pages/diary; exec sleep 2147483647`},
						VolumeMounts: []corev1.VolumeMount{{Name: "pages", MountPath: "/pages"}},
					}},
				},
			},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{
				ObjectMeta: metav1.ObjectMeta{Name: "pages"},
				Spec: corev1.PersistentVolumeClaimSpec{
					StorageClassName: &class,
					AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
					Resources: corev1.VolumeResourceRequirements{
						Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")},
					},
				},
			}},
		},
	}
}

// inPod runs a script in the pod, which has to have started writing.
func (s *story) inPod(ctx context.Context, script string) (string, error) {
	kubectl := s.lab.Binaries().Path("kubectl")
	var out []byte
	err := s.until(ctx, script, func(ctx context.Context) (err error) {
		cmd := exec.CommandContext(ctx, kubectl, "--kubeconfig", s.home.Kubeconfig(), "--namespace", namespace,
			"exec", pod, "--", "sh", "-c", script)
		if out, err = cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	return strings.TrimSpace(string(out)), err
}

// lastEvents is what users would look at when a pod does not start.
func (s *story) lastEvents(ctx context.Context) string {
	events, err := s.client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	said := map[string]string{}
	for _, event := range events.Items {
		said[event.InvolvedObject.Name] = event.Message
	}
	return fmt.Sprint(said)
}

func realSource(volume *corev1.PersistentVolume) string {
	if csi := volume.Spec.CSI; csi != nil {
		return fmt.Sprintf("the driver %s, which calls it %s", csi.Driver, csi.VolumeHandle)
	}
	return "no CSI driver"
}

// gravity is which nodes a later consumer may run on.
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
