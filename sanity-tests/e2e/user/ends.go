package user

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/clusters"
)

// watched is nil unless the suite uses MainWithDriver.
var watched *driverTerminations

// driverTerminations records terminations of the driver's containers while a suite runs, because most pods are
// deleted before its end.
type driverTerminations struct {
	mutex sync.Mutex
	ends  map[string]struct{}
}

func (d *driverTerminations) start(cluster *clusters.Cluster) (stop func(), err error) {
	client, err := cluster.Client()
	if err != nil {
		return nil, err
	}
	began := time.Now().Truncate(time.Second) // like the times in container statuses
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(chart.Namespace))
	_, err = factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(pod any) { d.record(pod, began) },
		UpdateFunc: func(_, pod any) { d.record(pod, began) },
		DeleteFunc: func(pod any) { d.record(pod, began) },
	})
	if err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	factory.Start(ended)
	return func() { close(ended) }, nil
}

func (d *driverTerminations) record(object any, began time.Time) {
	if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = last.Obj
	}
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return
	}
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.ends == nil {
		d.ends = map[string]struct{}{}
	}
	for _, end := range unexpected(pod, began) {
		d.ends[end] = struct{}{}
	}
}

func (d *driverTerminations) found() error {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if len(d.ends) == 0 {
		return nil
	}
	ends := slices.Sorted(maps.Keys(d.ends))
	return errors.New(Violation + "containers of the driver ended by themselves:\n  " + strings.Join(ends, "\n  "))
}

// unexpected returns terminations of the driver's containers that the deletion of their pod does not
// explain: that ends with 0, 143 (SIGTERM) or 137 (SIGKILL). A container that was restarted in its pod
// has exited by itself, or failed its probe.
func unexpected(pod *corev1.Pod, since time.Time) (ends []string) {
	component := pod.Labels["app.kubernetes.io/component"]
	if !slices.Contains([]string{"controller", "node", "fabric"}, component) {
		return nil
	}
	for _, container := range pod.Status.ContainerStatuses {
		if container.Name != "driver" && container.Name != "fabric" {
			continue // sidecars exit when the API server is unreachable
		}
		last, now := container.LastTerminationState.Terminated, container.State.Terminated
		for _, end := range []*corev1.ContainerStateTerminated{last, now} {
			if end == nil || end.FinishedAt.Time.Before(since) {
				continue
			}
			expected := slices.Contains([]int32{0, 137, 143}, end.ExitCode) && end.Reason != "OOMKilled"
			if expected && end == now {
				continue
			}
			ends = append(ends, fmt.Sprintf("%s of pod %s at %s: exit code %d, %s", container.Name, pod.Name,
				end.FinishedAt.UTC().Format(time.TimeOnly), end.ExitCode, end.Reason))
		}
	}
	return ends
}
