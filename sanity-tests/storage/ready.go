package storage

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// condition returns what is missing, or "".
type condition func(ctx context.Context) (missing string, err error)

// waitFor waits until nothing is missing. The error has what was missing last.
func waitFor(ctx context.Context, what string, met condition) error {
	for {
		missing, err := met(ctx)
		if err == nil && missing == "" {
			return nil
		}
		if err != nil {
			missing = err.Error()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s not ready: %s", what, missing)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func deploymentReady(client kubernetes.Interface, name string) condition {
	namespace, name, _ := strings.Cut(name, "/")
	return func(ctx context.Context) (string, error) {
		deployment, err := client.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		status := deployment.Status
		if status.ObservedGeneration == deployment.Generation && status.UpdatedReplicas > 0 && status.AvailableReplicas == status.UpdatedReplicas && status.Replicas == status.UpdatedReplicas {
			return "", nil
		}
		return podTrouble(ctx, client, namespace, name)
	}
}

// daemonSetReady is met when the current version runs on every node.
func daemonSetReady(client kubernetes.Interface, name string) condition {
	return func(ctx context.Context) (string, error) {
		set, err := client.AppsV1().DaemonSets(Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		status := set.Status
		if status.ObservedGeneration == set.Generation && status.DesiredNumberScheduled > 0 &&
			status.UpdatedNumberScheduled == status.DesiredNumberScheduled && status.NumberAvailable == status.DesiredNumberScheduled {
			return "", nil
		}
		return podTrouble(ctx, client, Namespace, name)
	}
}

// podTrouble returns why pods of an app do not run, according to kubelet or the scheduler.
func podTrouble(ctx context.Context, client kubernetes.Interface, namespace, app string) (string, error) {
	pods, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		return "", err
	}
	trouble := []string{"pods of " + app + " are not ready"}
	for _, pod := range pods.Items {
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodScheduled && condition.Status != corev1.ConditionTrue {
				trouble = append(trouble, condition.Message)
			}
		}
		for _, container := range pod.Status.ContainerStatuses {
			if waiting := container.State.Waiting; waiting != nil {
				trouble = append(trouble, fmt.Sprintf("%s/%s: %s %s", pod.Name, container.Name, waiting.Reason, waiting.Message))
			}
			if ended := container.LastTerminationState.Terminated; ended != nil {
				trouble = append(trouble, fmt.Sprintf("%s/%s ended with %d", pod.Name, container.Name, ended.ExitCode))
			}
		}
	}
	return strings.Join(trouble, "; "), nil
}

// driversRegistered is met when kubelet has registered all drivers.
func driversRegistered(client kubernetes.Interface, node string) condition {
	return func(ctx context.Context) (string, error) {
		csiNode, err := client.StorageV1().CSINodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		for _, driver := range Drivers() {
			registered := func(entry storagev1.CSINodeDriver) bool { return entry.Name == driver.Name }
			if !slices.ContainsFunc(csiNode.Spec.Drivers, registered) {
				return podTrouble(ctx, client, Namespace, driver.Short+"-node")
			}
		}
		return "", nil
	}
}

// capacityPublished is met when the free space of each node is published.
func capacityPublished(client kubernetes.Interface, nodes []string) condition {
	return func(ctx context.Context) (string, error) {
		capacities, err := client.StorageV1().CSIStorageCapacities(Namespace).List(ctx, metav1.ListOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return "", err
		}
		key := "topology." + Local.Name + "/node"
		for _, node := range nodes {
			published := func(capacity storagev1.CSIStorageCapacity) bool {
				return capacity.StorageClassName == "reference-local" && capacity.NodeTopology != nil &&
					capacity.NodeTopology.MatchLabels[key] == node
			}
			if !slices.ContainsFunc(capacities.Items, published) {
				return "no CSIStorageCapacity of class reference-local for node " + node, nil
			}
		}
		return "", nil
	}
}
