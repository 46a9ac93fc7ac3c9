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

// controllerPods selects the replicas of the controller.
const controllerPods = "app.kubernetes.io/component=controller"

// full holds the same races without and with many volumes in the cluster, reads what the
// replicas hold, restarts them with ten remote clusters declared, and has all the volumes
// deleted at once.
func (t *track) full(ctx context.Context, lab *clusters.Lab, class string, counts []int, volumes int) (report bench.FullReport, err error) {
	report = bench.FullReport{RealClass: class, Volumes: volumes, Clusters: manyClusters}
	if report.Without, err = t.races(ctx, class, counts); err != nil {
		return report, err
	}
	virtual, err := t.virtualClass(ctx, class)
	if err != nil {
		return report, err
	}
	namespace, err := t.namespace(ctx)
	if err != nil {
		return report, err
	}
	defer func() {
		_ = t.client.CoreV1().Namespaces().Delete(context.WithoutCancel(ctx), namespace, metav1.DeleteOptions{})
	}()
	fill, err := bench.NewFill(ctx, bench.Race{Client: t.client, Namespace: namespace, Class: virtual, Node: t.node})
	if err != nil {
		return report, err
	}
	begin := time.Now()
	if err := fill.Add(ctx, volumes); err != nil {
		return report, err
	}
	fmt.Fprintf(os.Stderr, "full: %d volumes are there after %s\n", volumes, time.Since(begin).Round(time.Second))
	if report.RSS, err = t.driver.SettledRSS(ctx); err != nil {
		return report, err
	}
	if report.With, err = t.races(ctx, class, counts); err != nil {
		return report, err
	}
	fmt.Fprintln(os.Stderr, "full: raced beside them")
	if err := t.restartWithClusters(ctx, lab, class, &report); err != nil {
		return report, fmt.Errorf("restart: %w", err)
	}
	fmt.Fprintf(os.Stderr, "full: restarted in %s; all of them are deleted now\n", report.Restart.Round(time.Millisecond))
	replicas, err := t.driver.ForgetPeaks()
	if err != nil {
		return report, err
	}
	begin = time.Now()
	if err := fill.Remove(ctx); err != nil {
		return report, err
	}
	report.Removal = time.Since(begin)
	report.Peak, err = t.driver.Peaks(replicas)
	return report, err
}

func (t *track) races(ctx context.Context, class string, counts []int) ([]bench.Row, error) {
	var rows []bench.Row
	for _, n := range counts {
		row, err := t.race(ctx, class, n)
		if err != nil {
			return nil, fmt.Errorf("%d claims of class %s: %w", n, class, err)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// restartWithClusters declares many remote clusters, restarts the controller and reads what its
// replicas have asked for and received.
func (t *track) restartWithClusters(ctx context.Context, lab *clusters.Lab, class string, report *bench.FullReport) (err error) {
	remote, err := openRemote(ctx, t, lab)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remote.close(context.WithoutCancel(ctx))) }()
	if _, err := remote.many(ctx); err != nil {
		return err
	}
	if report.Restart, report.RestartCalls, err = t.restart(ctx, class); err != nil {
		return err
	}
	if report.RestartReceived, err = t.driver.Received(); err != nil {
		return err
	}
	report.RestartRSS, err = t.driver.SettledRSS(ctx)
	return err
}

// restart deletes both replicas of the controller, waits until as many others are ready, and
// has one claim bound and deleted by them: a replica reads what it needs with its first call.
func (t *track) restart(ctx context.Context, class string) (time.Duration, bench.Calls, error) {
	none := bench.Calls{}
	pods := t.client.CoreV1().Pods(chart.Namespace)
	before, err := pods.List(ctx, metav1.ListOptions{LabelSelector: controllerPods})
	if err != nil {
		return 0, none, err
	}
	old := map[string]bool{}
	for _, pod := range before.Items {
		old[string(pod.UID)] = true
	}
	if err := t.audit.Mark(); err != nil {
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
			return fmt.Errorf("%d of %d are", ready, len(old))
		}
		return nil
	})
	if err != nil {
		return 0, none, err
	}
	if t.driver, err = bench.Find(ctx, t.client); err != nil {
		return 0, none, err
	}
	namespace, err := t.namespace(ctx)
	if err != nil {
		return 0, none, err
	}
	defer func() {
		_ = t.client.CoreV1().Namespaces().Delete(context.WithoutCancel(ctx), namespace, metav1.DeleteOptions{})
	}()
	virtual, err := t.virtualClass(ctx, class)
	if err != nil {
		return 0, none, err
	}
	_, err = bench.Race{Client: t.client, Namespace: namespace, Class: virtual, Node: t.node, Count: 1}.Run(ctx)
	took := time.Since(begin)
	calls, err2 := t.audit.Calls()
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
