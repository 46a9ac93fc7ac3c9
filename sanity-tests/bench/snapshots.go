package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
)

const (
	snapshotter = "csi-snapshotter"
	// notAdvertised is what csi-snapshotter logs before it exits if the driver does not advertise
	// CREATE_DELETE_SNAPSHOT.
	notAdvertised = "does not support ControllerCreateSnapshot"
)

// NoSnapshotClass returns why the VolumeSnapshotClass cannot be used with the driver, or "".
func NoSnapshotClass(ctx context.Context, client dynamic.Interface, name, driver string) (string, error) {
	class, err := client.Resource(SnapshotClasses).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "there is no VolumeSnapshotClass " + name, nil
	}
	if err != nil {
		return "", fmt.Errorf("VolumeSnapshotClass %s: %w", name, err)
	}
	if got, _, _ := unstructured.NestedString(class.Object, "driver"); got != driver {
		return fmt.Sprintf("VolumeSnapshotClass %s is of the driver %s, not of %s", name, got, driver), nil
	}
	return "", nil
}

// NoSnapshotter returns why csi-snapshotter cannot take snapshots with the driver, or "". What the
// driver advertises is read from the log of csi-snapshotter.
func NoSnapshotter(ctx context.Context, client kubernetes.Interface, namespace, selector string) (string, error) {
	pods, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return "", err
	}
	found := false
	for _, pod := range pods.Items {
		at := slices.IndexFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.Name == snapshotter })
		if at < 0 || pod.DeletionTimestamp != nil {
			continue
		}
		found = true
		status := pod.Status.ContainerStatuses[at]
		refused, err := logContains(ctx, client, &pod, status.RestartCount > 0, notAdvertised)
		if err != nil {
			return "", err
		}
		if refused {
			return "the driver does not advertise CREATE_DELETE_SNAPSHOT, according to csi-snapshotter in pod " + pod.Name, nil
		}
		if status.State.Running == nil {
			return "csi-snapshotter is not running in pod " + pod.Name, nil
		}
	}
	if !found {
		return "the driver's controller has no csi-snapshotter (chart: controller.snapshotter.enabled)", nil
	}
	return "", nil
}

// logContains searches the log of csi-snapshotter, and that of its previous container.
func logContains(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, restarted bool, text string) (bool, error) {
	for _, previous := range []bool{false, true} {
		if previous && !restarted {
			break
		}
		log, err := client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Container: snapshotter, Previous: previous}).DoRaw(ctx)
		if apierrors.IsBadRequest(err) {
			continue // there is no such log
		}
		if err != nil {
			return false, fmt.Errorf("log of %s in pod %s: %w", snapshotter, pod.Name, err)
		}
		if strings.Contains(string(log), text) {
			return true, nil
		}
	}
	return false, nil
}
