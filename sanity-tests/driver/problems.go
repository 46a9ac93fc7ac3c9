package driver

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"storage.liqo.io/sanity-tests/chart"
)

// podProblems describes which containers of the release do not run and why, because Helm only
// reports a timeout. It is for the text of an error, so it returns none itself.
func podProblems(ctx context.Context, client kubernetes.Interface) string {
	ctx = context.WithoutCancel(ctx)
	pods, err := client.CoreV1().Pods(chart.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	var problems []string
	for _, pod := range pods.Items {
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodScheduled && condition.Status != corev1.ConditionTrue {
				problems = append(problems, fmt.Sprintf("pod %s: %s", pod.Name, condition.Message))
			}
		}
		for _, container := range pod.Status.ContainerStatuses {
			if !container.Ready {
				problems = append(problems, containerProblem(ctx, client, pod.Name, container))
			}
		}
	}
	return strings.Join(problems, "\n")
}

func containerProblem(ctx context.Context, client kubernetes.Interface, pod string, container corev1.ContainerStatus) string {
	state := "not ready"
	if waiting := container.State.Waiting; waiting != nil {
		state = waiting.Reason + " " + waiting.Message
	}
	log, err := client.CoreV1().Pods(chart.Namespace).GetLogs(pod, &corev1.PodLogOptions{
		Container: container.Name, TailLines: new(int64(5)), Previous: container.RestartCount > 0,
	}).DoRaw(ctx)
	if err != nil {
		log = []byte(err.Error())
	}
	return fmt.Sprintf("pod %s, container %s: %s\n%s", pod, container.Name, state, log)
}
