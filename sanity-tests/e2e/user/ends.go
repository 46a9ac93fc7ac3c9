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

// watched is nil unless the suite is one of MainOverDriver.
var watched *driverEnds

// driverEnds notes the ends of the driver's containers while a suite runs: pods come and go with each
// installation, so that in the end nothing would be seen of most.
type driverEnds struct {
	mutex sync.Mutex
	ends  map[string]struct{}
}

func (d *driverEnds) start(cluster *clusters.Cluster) (stop func(), err error) {
	client, err := cluster.Client()
	if err != nil {
		return nil, err
	}
	began := time.Now().Truncate(time.Second) // as precise as the time at which a container ended
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(chart.Namespace))
	_, err = factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(pod any) { d.note(pod, began) },
		UpdateFunc: func(_, pod any) { d.note(pod, began) },
		DeleteFunc: func(pod any) { d.note(pod, began) },
	})
	if err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	factory.Start(ended)
	return func() { close(ended) }, nil
}

func (d *driverEnds) note(object any, began time.Time) {
	if last, is := object.(cache.DeletedFinalStateUnknown); is {
		object = last.Obj
	}
	pod, is := object.(*corev1.Pod)
	if !is {
		return
	}
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.ends == nil {
		d.ends = map[string]struct{}{}
	}
	for _, end := range unasked(pod, began) {
		d.ends[end] = struct{}{}
	}
}

func (d *driverEnds) found() error {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if len(d.ends) == 0 {
		return nil
	}
	ends := slices.Sorted(maps.Keys(d.ends))
	return errors.New(Violation + "containers of the driver ended by themselves:\n  " + strings.Join(ends, "\n  "))
}

// unasked are the ends of the driver's containers in a pod that nobody asked for. Whoever deletes a
// pod asks for the end of its containers, which are told to end (0, 143) and killed if they do not
// (137); one that is started again within its pod ended by itself, or did not answer its probe.
func unasked(pod *corev1.Pod, since time.Time) (ends []string) {
	component := pod.Labels["app.kubernetes.io/component"]
	if !slices.Contains([]string{"controller", "node", "fabric"}, component) {
		return nil
	}
	for _, container := range pod.Status.ContainerStatuses {
		if container.Name != "driver" && container.Name != "fabric" {
			continue // sidecars give up when the API server is away
		}
		last, now := container.LastTerminationState.Terminated, container.State.Terminated
		for _, end := range []*corev1.ContainerStateTerminated{last, now} {
			if end == nil || end.FinishedAt.Time.Before(since) {
				continue
			}
			told := slices.Contains([]int32{0, 137, 143}, end.ExitCode) && end.Reason != "OOMKilled"
			if told && end == now {
				continue
			}
			ends = append(ends, fmt.Sprintf("%s of pod %s at %s: exit code %d, %s", container.Name, pod.Name,
				end.FinishedAt.UTC().Format(time.TimeOnly), end.ExitCode, end.Reason))
		}
	}
	return ends
}
