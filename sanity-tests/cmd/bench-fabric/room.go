package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"storage.liqo.io/sanity-tests/bench"
	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/images"
)

const (
	// roomNodes have nodeCPU each, of which foreign pods request nine tenths. Own pods request ownCPU.
	roomNodes, nodeCPU, foreignCPU, ownCPU = 10, 100, 10, 3
	// ownPods of each of two priorities request a little more than what is left.
	ownPods = 20
	// roomChange is how often another home replaces one of its pods, roomSample how often is compared.
	roomChange, roomSample = 5 * time.Second, 5 * time.Second
)

// runRoom compares what the virtual node of a nearly full cluster offers with what the nodes there could take, while others
// replace their pods there, and counts what that costs.
func runRoom(ctx context.Context, e *environment, during time.Duration) (report bench.RoomReport, err error) {
	if err := e.prepareRoom(ctx); err != nil {
		return report, err
	}
	if err := e.homeAudit.Mark(); err != nil {
		return report, err
	}
	if err := e.createOwn(ctx, "low", 0); err != nil {
		return report, err
	}
	report.Nodes, report.Pods = roomNodes, 2*ownPods
	begin, placed, hasHigh := time.Now(), map[string]bool{}, false
	for turn := 0; time.Since(begin) < during; turn++ {
		// Those of a higher priority come when the others have found their place.
		if !hasHigh && time.Since(begin) > during/2 {
			if err := e.createOwn(ctx, "high", 1000); err != nil {
				return report, err
			}
			hasHigh = true
		}
		if err := e.replaceForeign(ctx, turn); err != nil {
			return report, err
		}
		sample, err := e.sampleRoom(ctx, placed)
		if err != nil {
			return report, err
		}
		report.Samples = append(report.Samples, sample)
		select {
		case <-ctx.Done():
			return report, context.Cause(ctx)
		case <-time.After(roomSample):
		}
	}
	report.Took, report.Placed = time.Since(begin), len(placed)
	writes, err := e.homeAudit.CallsOn("nodes")
	if err != nil {
		return report, err
	}
	report.NodeWrites = writes[bench.Agent].Writes
	report.Returns, report.Preempted, err = e.countEvents(ctx)
	return report, err
}

// prepareRoom fills the nodes there, and offloads a namespace to what is left of them.
func (e *environment) prepareRoom(ctx context.Context) error {
	if err := e.simulateNodes(ctx, roomNodes); err != nil {
		return err
	}
	kubeconfig, err := e.installWith(ctx, chart.Values{"freeCapacity": true})
	if err != nil {
		return err
	}
	e.addCleanup(func(ctx context.Context) error {
		return e.remoteClient.CoreV1().Namespaces().Delete(ctx, e.foreign(), metav1.DeleteOptions{})
	})
	foreign := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: e.foreign()}}
	if _, err := e.remoteClient.CoreV1().Namespaces().Create(ctx, foreign, metav1.CreateOptions{}); err != nil {
		return err
	}
	for number := range roomNodes * nodeCPU * 9 / 10 / foreignCPU {
		if err := e.createForeign(ctx, number, fmt.Sprintf("played-%d", number%roomNodes), foreignCPU); err != nil {
			return err
		}
	}
	e.addCleanup(func(ctx context.Context) error { return driver.Undeclare(ctx, e.home, cluster) })
	fabric := fabricOnSimulatedNodes(node, 0)
	fabric["capacity"] = map[string]any{"source": "Free"}
	if err := driver.Declare(ctx, e.home, cluster, kubeconfig, fabric); err != nil {
		return err
	}
	return e.offload(ctx, "LocalAndRemote")
}

func (e *environment) foreign() string { return e.namespace + "-foreign" }

// createForeign creates a pod of another home, on this node or where the scheduler there puts it.
func (e *environment) createForeign(ctx context.Context, number int, node string, cpu int64) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("foreign-%d", number)}, Spec: cpuPod(cpu)}
	pod.Spec.NodeName = node
	pod.Spec.NodeSelector = map[string]string{simulated: "true"}
	pod.Spec.Tolerations = []corev1.Toleration{{Key: simulated, Operator: corev1.TolerationOpExists}}
	_, err := e.remoteClient.CoreV1().Pods(e.foreign()).Create(ctx, pod, metav1.CreateOptions{})
	return err
}

func cpuPod(cpu int64) corev1.PodSpec {
	return corev1.PodSpec{
		TerminationGracePeriodSeconds: new(int64(1)),
		Containers: []corev1.Container{{
			Name: "main", Image: images.PauseName,
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(cpu, resource.DecimalSI)}},
		}},
	}
}

// replaceForeign deletes one pod of another home, and creates one of half to one and a half times its size.
func (e *environment) replaceForeign(ctx context.Context, turn int) error {
	pods := e.remoteClient.CoreV1().Pods(e.foreign())
	all, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil || len(all.Items) == 0 {
		return err
	}
	random := rand.New(rand.NewPCG(uint64(turn), 0))
	err = pods.Delete(ctx, all.Items[random.IntN(len(all.Items))].Name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return e.createForeign(ctx, 1000+turn, "", foreignCPU/2+random.Int64N(foreignCPU+1))
}

// createOwn creates a Deployment whose pods prefer the virtual node. Nodes at home are too small for them.
func (e *environment) createOwn(ctx context.Context, name string, priority int32) error {
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: e.namespace + "-" + name}, Value: priority}
	classes := e.homeClient.SchedulingV1().PriorityClasses()
	e.addCleanup(func(ctx context.Context) error { return classes.Delete(ctx, class.Name, metav1.DeleteOptions{}) })
	if _, err := classes.Create(ctx, class, metav1.CreateOptions{}); err != nil {
		return err
	}
	labels := map[string]string{"app": name}
	spec := cpuPod(ownCPU)
	spec.PriorityClassName = class.Name
	_, err := e.homeClient.AppsV1().Deployments(e.namespace).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(ownPods)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
		},
	}, metav1.CreateOptions{})
	fmt.Fprintf(os.Stderr, "room: created the pods of priority %d\n", priority)
	return err
}

// sampleRoom adds the uids of the own pods that have a node there to placed.
func (e *environment) sampleRoom(ctx context.Context, placed map[string]bool) (sample bench.RoomSample, err error) {
	virtual, err := e.homeClient.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return sample, err
	}
	used, err := requestedOn(ctx, e.homeClient, func(*corev1.Pod) {})
	if err != nil {
		return sample, err
	}
	sample.Offered = int(max(0, virtual.Status.Allocatable.Cpu().MilliValue()-used[node])) / (1000 * ownCPU)
	there, err := requestedOn(ctx, e.remoteClient, func(pod *corev1.Pod) {
		switch home := pod.Annotations[homePodUID]; {
		case home == "":
		case pod.Spec.NodeName == "":
			sample.Waiting++
		default:
			placed[home] = true
		}
	})
	if err != nil {
		return sample, err
	}
	for number := range roomNodes {
		free := max(0, nodeCPU*1000-there[fmt.Sprintf("played-%d", number)])
		sample.Placeable += int(free) / (1000 * ownCPU)
	}
	return sample, nil
}

// requestedOn returns the requested CPU by node, in thousandths, and calls each for every pod that has not ended.
func requestedOn(ctx context.Context, client kubernetes.Interface, each func(*corev1.Pod)) (map[string]int64, error) {
	all, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	requested := map[string]int64{}
	for _, pod := range all.Items {
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		each(&pod)
		for _, container := range pod.Spec.Containers {
			requested[pod.Spec.NodeName] += container.Resources.Requests.Cpu().MilliValue()
		}
	}
	return requested, nil
}

// countEvents returns how many pods of the namespace went back, and how many were pre-empted.
func (e *environment) countEvents(ctx context.Context) (returns, preempted int, err error) {
	events, err := e.homeClient.EventsV1().Events(e.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, 0, err
	}
	for _, event := range events.Items {
		switch event.Reason {
		case "RemotePodGivenUp":
			returns++
		case "Preempted":
			preempted++
		}
	}
	return returns, preempted, nil
}
