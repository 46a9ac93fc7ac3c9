package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"storage.liqo.io/sanity-tests/bench"
	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/images"
	"storage.liqo.io/sanity-tests/machine"
)

const (
	// probes is how many pods are created in each period.
	probes = 20
	// settling is the shortest duration of a period.
	settling = time.Minute
	// probeLimit is for a pod of an ordinary cluster, whatever the others do.
	probeLimit = 5 * time.Minute
	// sidecarBytes makes a pod as large as one with usual sidecars, 15 KiB.
	sidecarBytes = 12 << 10
	// What the hostile tenant has: pods and ConfigMaps that are as large as the API server allows.
	tenantPods, tenantConfigMaps = 50, 5
	tenantAnnotation             = 240 << 10
	tenantConfigMap              = 900 << 10
	// hostilePods run in the hostile cluster before it becomes hostile.
	hostilePods = 20
	// clusterLabel selects a cluster.
	clusterLabel = "bench/cluster"
)

// crowdCluster is one of several clusters, with a virtual node of the same name, and a namespace for pods that run all
// the time and one for single pods.
type crowdCluster struct {
	name            string
	standing, probe string
	front           *front
}

// crowd has ordinary clusters, and one that becomes hostile; the tenant is a namespace that is offloaded to the first one.
type crowd struct {
	*environment
	ordinary []*crowdCluster
	hostile  *crowdCluster
	tenant   string
}

// runCrowd measures pods in ordinary clusters: alone, beside a hostile tenant, beside a hostile cluster, and beside both,
// with a restart of the fabric.
func runCrowd(ctx context.Context, e *environment, clusters, pods int) (report bench.CrowdReport, err error) {
	c := &crowd{environment: e, tenant: e.namespace + "-tenant"}
	if err := c.prepare(ctx, clusters, pods); err != nil {
		return report, err
	}
	report = bench.CrowdReport{Clusters: clusters, PodsEach: pods}
	return report, c.withPods(ctx, c.ordinary, pods, func(ctx context.Context) error {
		return c.withPods(ctx, []*crowdCluster{c.hostile}, hostilePods, func(ctx context.Context) error {
			return c.periods(ctx, &report)
		})
	})
}

// prepare creates nodes, clusters and namespaces.
func (c *crowd) prepare(ctx context.Context, clusters, pods int) error {
	if err := c.simulateNodes(ctx, (clusters*pods+hostilePods+tenantPods)/perNode+2); err != nil {
		return err
	}
	kubeconfig, err := c.install(ctx)
	if err != nil {
		return err
	}
	for number := range clusters + 1 {
		one := &crowdCluster{name: fmt.Sprintf("%s-%d", cluster, number)}
		one.standing, one.probe = fmt.Sprintf("%s-%d", c.namespace, number), fmt.Sprintf("%s-%d-probe", c.namespace, number)
		namespaces := []string{one.standing, one.probe}
		if number == 0 {
			namespaces = append(namespaces, c.tenant)
		}
		if number < clusters {
			c.ordinary = append(c.ordinary, one)
		} else {
			c.hostile = one
		}
		if err := c.add(ctx, one, number, namespaces, kubeconfig, pods); err != nil {
			return fmt.Errorf("cluster %s: %w", one.name, err)
		}
		fmt.Fprintf(os.Stderr, "crowd: %s is ready\n", one.name)
	}
	c.fabric, err = bench.Find(ctx, c.homeClient)
	return err
}

// add declares a cluster, and offloads its namespaces to it.
func (c *crowd) add(ctx context.Context, one *crowdCluster, number int, namespaces []string, kubeconfig []byte, pods int) error {
	var err error
	if one.front, kubeconfig, err = startFront(ctx, c.home, c.remote, number+1, namespaces, kubeconfig); err != nil {
		return err
	}
	c.addCleanup(one.front.close)
	c.addCleanup(func(ctx context.Context) error { return driver.Undeclare(ctx, c.home, one.name) })
	fabric := fabricOnSimulatedNodes(one.name, 2*pods+hostilePods+tenantPods)
	fabric["labels"] = map[string]any{clusterLabel: one.name}
	if err := driver.Declare(ctx, c.home, one.name, kubeconfig, fabric); err != nil {
		return err
	}
	for _, namespace := range namespaces {
		c.addCleanup(func(ctx context.Context) error {
			return c.homeClient.CoreV1().Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{})
		})
		object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
		if _, err := c.homeClient.CoreV1().Namespaces().Create(ctx, object, metav1.CreateOptions{}); err != nil {
			return err
		}
		c.addCleanup(func(ctx context.Context) error {
			return c.program(ctx, "unoffload", "namespace", namespace, "--force")
		})
		err := c.program(ctx, "offload", "namespace", namespace, "--pod-offloading-strategy", "Remote", "--timeout", "2m",
			"--namespace-mapping-strategy", "EnforceSameName", "--selector", clusterLabel+"="+one.name)
		if err != nil {
			return err
		}
	}
	return nil
}

// withPods runs pods in each cluster while next runs.
func (c *crowd) withPods(ctx context.Context, in []*crowdCluster, pods int, next func(context.Context) error) error {
	if len(in) == 0 {
		return next(ctx)
	}
	batch := c.batchIn(in[0].name, in[0].standing, pods)
	batch.WhileReady = func(ctx context.Context) error {
		fmt.Fprintf(os.Stderr, "crowd: %d pods run in %s\n", pods, in[0].name)
		return c.withPods(ctx, in[1:], pods, next)
	}
	_, err := batch.Run(ctx)
	return err
}

// batchIn are pods of the fabric on one of its nodes, as large as with usual sidecars.
func (c *crowd) batchIn(node, namespace string, pods int) bench.PodBatch {
	return bench.PodBatch{Client: c.homeClient, Namespace: namespace, Count: pods, Place: func(spec *corev1.PodSpec) {
		placeOn(node)(spec)
		spec.Containers = append(spec.Containers, corev1.Container{
			Name: "sidecar", Image: images.PauseName, Env: []corev1.EnvVar{{Name: "CONFIGURATION", Value: strings.Repeat("x", sidecarBytes)}},
		})
	}}
}

// periods measures one after the other.
func (c *crowd) periods(ctx context.Context, report *bench.CrowdReport) error {
	add := func(period string) error {
		row, err := c.period(ctx, period)
		report.Rows = append(report.Rows, row)
		fmt.Fprintf(os.Stderr, "crowd: %s: pods ready after %s (p50)\n", period, row.Pod.P50.Round(time.Millisecond))
		return err
	}
	if err := add("ordinary"); err != nil {
		return err
	}
	stop, err := c.startTenant(ctx)
	if err != nil {
		return fmt.Errorf("hostile tenant: %w", err)
	}
	err = add("hostile tenant")
	if err := errors.Join(err, stop()); err != nil {
		return err
	}
	if err := c.turnHostile(ctx); err != nil {
		return fmt.Errorf("hostile cluster: %w", err)
	}
	defer c.hostile.front.setHostile(nil) // or its pods would never end
	if err := add("hostile cluster"); err != nil {
		return err
	}
	if stop, err = c.startTenant(ctx); err != nil {
		return fmt.Errorf("hostile tenant: %w", err)
	}
	if err := add("both"); err != nil {
		return errors.Join(err, stop())
	}
	report.Restart, err = c.restartFabric(ctx)
	if err == nil {
		err = add("both, after a restart")
	}
	return errors.Join(err, stop())
}

// period creates single pods in the ordinary clusters, in turns.
func (c *crowd) period(ctx context.Context, name string) (row bench.CrowdRow, err error) {
	row.Period = name
	before, err := c.fabric.ResetAllPeaks()
	if err == nil {
		err = errors.Join(c.homeAudit.Mark(), c.remoteAudit.Mark())
	}
	if err != nil {
		return row, err
	}
	front, begin := c.hostile.front, time.Now()
	answers, sent := front.answers.Load(), front.sent.Load()
	var results []bench.Result
	for number := range probes {
		result, err := c.probeIn(ctx, c.ordinary[number%len(c.ordinary)], nil)
		if err != nil {
			return row, fmt.Errorf("period %q: %w", name, err)
		}
		results = append(results, result)
	}
	select {
	case <-ctx.Done():
		return row, context.Cause(ctx)
	case <-time.After(time.Until(begin.Add(settling))):
	}
	row.Took, row.Pod = time.Since(begin), bench.Summarize(results)
	row.Answers, row.Sent = front.answers.Load()-answers, front.sent.Load()-sent
	home, err := c.homeAudit.Calls()
	if err != nil {
		return row, err
	}
	remote, err := c.remoteAudit.Calls()
	if err != nil {
		return row, err
	}
	row.Home, row.Remote = home[bench.Agent], remote[bench.Agent]
	after, err := c.fabric.Processes(bench.Controller, bench.Fabric)
	if err != nil {
		return row, err
	}
	for _, process := range before {
		at := slices.IndexFunc(after, func(now bench.Process) bool { return now.PID == process.PID })
		if at < 0 {
			return row, fmt.Errorf("period %q: %s with the pid %d ended meanwhile", name, process.Name, process.PID)
		}
		peak, cpu := &row.ControllerPeak, &row.ControllerCPU
		if process.Name == bench.Fabric {
			peak, cpu = &row.FabricPeak, &row.FabricCPU
		}
		*peak, *cpu = max(*peak, after[at].Peak), *cpu+after[at].CPU-process.CPU
	}
	return row, nil
}

func (c *crowd) probeIn(ctx context.Context, in *crowdCluster, whileReady func(context.Context) error) (bench.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	batch := c.batchIn(in.name, in.probe, 1)
	batch.WhileReady = whileReady
	result, err := batch.Run(ctx)
	if err != nil {
		err = fmt.Errorf("a pod in %s: %w", in.name, err)
	}
	return result, err
}

// restartFabric deletes all replicas, and returns after which time a pod that was created then was ready.
func (c *crowd) restartFabric(ctx context.Context) (took time.Duration, err error) {
	begin := time.Now()
	replicas := metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=fabric"}
	if err := c.homeClient.CoreV1().Pods(chart.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, replicas); err != nil {
		return 0, err
	}
	_, err = c.probeIn(ctx, c.ordinary[len(c.ordinary)-1], func(context.Context) error {
		took = time.Since(begin)
		return nil
	})
	if err != nil {
		return took, err
	}
	c.fabric, err = bench.Find(ctx, c.homeClient)
	return took, err
}

// turnHostile makes the API server of the hostile cluster answer as largely as it can about the pods that run there.
func (c *crowd) turnHostile(ctx context.Context) error {
	all, err := c.remoteClient.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: homeLabel})
	if err != nil {
		return err
	}
	var pods []map[string]any
	for _, pod := range all.Items {
		if !strings.HasPrefix(pod.Annotations[homePod], c.hostile.standing+"/") {
			continue
		}
		pod.APIVersion, pod.Kind, pod.ManagedFields = "v1", "Pod", nil
		object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&pod)
		if err != nil {
			return err
		}
		pods = append(pods, object)
	}
	if len(pods) == 0 {
		return fmt.Errorf("no pods of %s among %d run there", c.hostile.standing, len(all.Items))
	}
	c.hostile.front.setHostile(pods)
	return nil
}

// startTenant creates what the tenant has, and changes it and creates and deletes pods without pause until stop is called,
// which deletes it.
func (c *crowd) startTenant(ctx context.Context) (stop func() error, err error) {
	ctx, cancel := context.WithCancel(ctx)
	pods, maps := c.homeClient.CoreV1().Pods(c.tenant), c.homeClient.CoreV1().ConfigMaps(c.tenant)
	pod := func(name string) *corev1.Pod {
		object := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"padding": strings.Repeat("x", tenantAnnotation)}},
			Spec: corev1.PodSpec{
				TerminationGracePeriodSeconds: new(int64(1)),
				Containers:                    []corev1.Container{{Name: "main", Image: images.PauseName}},
			},
		}
		placeOn(c.ordinary[0].name)(&object.Spec)
		return object
	}
	for number := range tenantConfigMaps {
		name := fmt.Sprintf("large-%d", number)
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"large": strings.Repeat("x", tenantConfigMap)}}
		if _, err := maps.Create(ctx, object, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			cancel()
			return nil, err
		}
	}
	for number := range tenantPods {
		if _, err := pods.Create(ctx, pod(fmt.Sprintf("large-%d", number)), metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			cancel()
			return nil, err
		}
	}
	var busy sync.WaitGroup
	every := func(pause time.Duration, act func(turn int)) {
		busy.Go(func() {
			for turn := 0; ctx.Err() == nil; turn++ {
				act(turn)
				select {
				case <-ctx.Done():
				case <-time.After(pause):
				}
			}
		})
	}
	change := func(turn int) []byte {
		return fmt.Appendf(nil, `{"metadata":{"annotations":{"changed":"%d"}}}`, turn)
	}
	// Requests that fail are not repeated: the next turn makes another one, and only the pods of others are measured.
	every(100*time.Millisecond, func(turn int) {
		_, _ = pods.Patch(ctx, fmt.Sprintf("large-%d", turn%tenantPods), types.MergePatchType, change(turn), metav1.PatchOptions{})
	})
	every(time.Second, func(turn int) {
		_, _ = maps.Patch(ctx, fmt.Sprintf("large-%d", turn%tenantConfigMaps), types.MergePatchType, change(turn), metav1.PatchOptions{})
	})
	every(500*time.Millisecond, func(turn int) {
		_, _ = pods.Create(ctx, pod(fmt.Sprintf("short-%d", turn)), metav1.CreateOptions{})
		if turn >= 10 {
			_ = pods.Delete(ctx, fmt.Sprintf("short-%d", turn-10), metav1.DeleteOptions{})
		}
	})
	parent := context.WithoutCancel(ctx)
	return func() error {
		cancel()
		busy.Wait()
		ctx, cancel := context.WithTimeout(parent, probeLimit)
		defer cancel()
		if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			return err
		}
		return machine.Until(ctx, "the pods of the hostile tenant to be deleted", func() error {
			left, err := pods.List(ctx, metav1.ListOptions{Limit: 1})
			if err == nil && len(left.Items) > 0 {
				err = fmt.Errorf("%s is there", left.Items[0].Name)
			}
			return err
		})
	}, nil
}
