package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/bench"
	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/machine"
)

const controllerPods = "app.kubernetes.io/component=controller"

// full measures the same batches without and with many volumes in the cluster, the memory of the
// replicas, their restart with ten RemoteClusters, and the deletion of all volumes at once.
func (e *environment) full(ctx context.Context, lab *clusters.Lab, class string, counts []int, volumes int) (report bench.FullReport, err error) {
	report = bench.FullReport{RealClass: class, Volumes: volumes, Clusters: manyClusters}
	if report.Without, err = e.batches(ctx, class, counts); err != nil {
		return report, err
	}
	virtual, err := e.virtualClass(ctx, class)
	if err != nil {
		return report, err
	}
	namespace, err := e.namespace(ctx)
	if err != nil {
		return report, err
	}
	defer e.deleteNamespace(ctx, namespace)
	copies, err := bench.NewCopiedVolumes(ctx, bench.Batch{Client: e.client, Namespace: namespace, Class: virtual, Node: e.node})
	if err != nil {
		return report, err
	}
	begin := time.Now()
	if err := copies.Add(ctx, volumes); err != nil {
		return report, err
	}
	fmt.Fprintf(os.Stderr, "full: created %d volumes in %s\n", volumes, time.Since(begin).Round(time.Second))
	if report.RSS, err = e.driver.StableRSS(ctx); err != nil {
		return report, err
	}
	if report.With, err = e.batches(ctx, class, counts); err != nil {
		return report, err
	}
	fmt.Fprintln(os.Stderr, "full: measured batches with them")
	if err := e.restartWithClusters(ctx, lab, class, &report); err != nil {
		return report, fmt.Errorf("restart: %w", err)
	}
	fmt.Fprintf(os.Stderr, "full: restarted in %s; deleting all volumes\n", report.Restart.Round(time.Millisecond))
	replicas, err := e.driver.ResetPeaks()
	if err != nil {
		return report, err
	}
	begin = time.Now()
	if err := copies.Remove(ctx); err != nil {
		return report, err
	}
	report.Removal = time.Since(begin)
	report.Peak, err = e.driver.Peaks(replicas)
	return report, err
}

func (e *environment) batches(ctx context.Context, class string, counts []int) ([]bench.Row, error) {
	var rows []bench.Row
	for _, n := range counts {
		row, err := e.batch(ctx, class, n)
		if err != nil {
			return nil, fmt.Errorf("%d claims of class %s: %w", n, class, err)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// restartWithClusters creates RemoteClusters, restarts the controller and reads which API calls its
// replicas made and how many bytes they received.
func (e *environment) restartWithClusters(ctx context.Context, lab *clusters.Lab, class string, report *bench.FullReport) (err error) {
	remote, err := openRemote(ctx, e, lab)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remote.close(context.WithoutCancel(ctx))) }()
	if _, err := remote.manyClustersRSS(ctx); err != nil {
		return err
	}
	if report.Restart, report.RestartCalls, err = e.restart(ctx, class); err != nil {
		return err
	}
	if report.RestartReceived, err = e.driver.Received(); err != nil {
		return err
	}
	report.RestartRSS, err = e.driver.StableRSS(ctx)
	return err
}

// restart deletes both replicas of the controller, waits until the new ones are ready, and measures
// one claim: a replica reads most of what it needs on its first CSI call.
func (e *environment) restart(ctx context.Context, class string) (time.Duration, bench.Calls, error) {
	none := bench.Calls{}
	pods := e.client.CoreV1().Pods(chart.Namespace)
	before, err := pods.List(ctx, metav1.ListOptions{LabelSelector: controllerPods})
	if err != nil {
		return 0, none, err
	}
	old := map[string]bool{}
	for _, pod := range before.Items {
		old[string(pod.UID)] = true
	}
	if err := e.audit.Mark(); err != nil {
		return 0, none, err
	}
	begin := time.Now()
	if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: controllerPods}); err != nil {
		return 0, none, err
	}
	err = machine.Until(ctx, "the replicas of the controller to be ready again", func() error {
		now, err := pods.List(ctx, metav1.ListOptions{LabelSelector: controllerPods})
		if err != nil {
			return err
		}
		ready := 0
		for _, pod := range now.Items {
			if !old[string(pod.UID)] && isReady(pod) {
				ready++
			}
		}
		if ready < len(old) {
			return fmt.Errorf("%d of %d are ready", ready, len(old))
		}
		return nil
	})
	if err != nil {
		return 0, none, err
	}
	if e.driver, err = bench.Find(ctx, e.client); err != nil {
		return 0, none, err
	}
	namespace, err := e.namespace(ctx)
	if err != nil {
		return 0, none, err
	}
	defer e.deleteNamespace(ctx, namespace)
	virtual, err := e.virtualClass(ctx, class)
	if err != nil {
		return 0, none, err
	}
	_, err = bench.Batch{Client: e.client, Namespace: namespace, Class: virtual, Node: e.node, Count: 1}.Run(ctx)
	took := time.Since(begin)
	calls, err2 := e.audit.Calls()
	return took, calls[bench.Agent], errors.Join(err, err2)
}

func isReady(pod corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}
