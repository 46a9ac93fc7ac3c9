package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/bench"
	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/images"
	"storage.liqo.io/sanity-tests/machine"
)

// gateClasses are one of this driver and two others. Pods with claims of the latter stay at home.
var gateClasses = []string{"liqo-reference", "reference", "reference-local"}

// gateLimit is for all pods of a period.
const gateLimit = 10 * time.Minute

// runGates measures how long pods with fresh claims wait for the controller to open their gate: of StatefulSets with this
// number of pods in all, bare pods and Jobs, beside pods without claims. Then it creates the bare pods again while there
// is no controller.
func runGates(ctx context.Context, e *environment, pods int, gone time.Duration) (report bench.GateReport, err error) {
	if err := e.prepareGates(ctx); err != nil {
		return report, err
	}
	watch, err := bench.WatchGates(ctx, e.homeClient, e.namespace)
	if err != nil {
		return report, err
	}
	defer watch.Stop()
	if err := e.homeAudit.Mark(); err != nil {
		return report, err
	}
	for at, class := range gateClasses {
		if err := e.createGatedSet(ctx, class, (pods+len(gateClasses)-1-at)/len(gateClasses)); err != nil {
			return report, err
		}
	}
	others := max(1, pods/5)
	if err := errors.Join(e.createGatedPods(ctx, "first", others), e.createGatedJobs(ctx, others)); err != nil {
		return report, err
	}
	// pods + bare pods with and without a claim + those of Jobs.
	if err := untilOpen(ctx, watch, pods+3*others); err != nil {
		return report, err
	}
	if report.JobsFailed, err = e.waitJobs(ctx, others); err != nil {
		return report, err
	}
	calls, err := e.homeAudit.CallsWhenIdle(ctx, bench.Agent)
	if err != nil {
		return report, err
	}
	report.WritesPerPod = float64(calls[bench.Agent].Writes) / float64(pods+3*others)
	report.Rows = watch.Rows("with controller")
	fmt.Fprintln(os.Stderr, "gates: measured with a controller")

	replicas, err := e.scaleController(ctx, 0)
	if err != nil {
		return report, err
	}
	restored := false
	restore := func(ctx context.Context) error {
		if restored {
			return nil
		}
		_, err := e.scaleController(ctx, replicas)
		restored = err == nil
		return err
	}
	e.addCleanup(restore)
	watch.Begin()
	begin := time.Now()
	if err := e.createGatedPods(ctx, "second", others); err != nil {
		return report, err
	}
	select {
	case <-ctx.Done():
		return report, context.Cause(ctx)
	case <-time.After(gone):
	}
	report.Rows = append(report.Rows, watch.Rows("no controller")...)
	report.Gone = time.Since(begin)
	begin = time.Now()
	if err := restore(ctx); err != nil {
		return report, err
	}
	if err := untilOpen(ctx, watch, 2*others); err != nil {
		return report, err
	}
	report.Afterwards = time.Since(begin)
	return report, nil
}

// prepareGates offloads a namespace whose pods may run in both clusters.
func (e *environment) prepareGates(ctx context.Context) error {
	if err := e.simulateNodes(ctx, 2); err != nil {
		return err
	}
	kubeconfig, err := e.install(ctx)
	if err != nil {
		return err
	}
	e.addCleanup(func(ctx context.Context) error { return driver.Undeclare(ctx, e.home, cluster) })
	if err := driver.Declare(ctx, e.home, cluster, kubeconfig, fabricOnSimulatedNodes(node, perNode)); err != nil {
		return err
	}
	return e.offload(ctx, "LocalAndRemote")
}

// untilOpen waits until this number of pods was seen, and no gate is closed.
func untilOpen(ctx context.Context, watch *bench.GateWatch, pods int) error {
	ctx, cancel := context.WithTimeout(ctx, gateLimit)
	defer cancel()
	return machine.Until(ctx, "all gates to be open", func() error {
		seen, waiting := 0, 0
		for _, row := range watch.Rows("") {
			seen, waiting = seen+row.Pods, waiting+row.Waiting
		}
		if seen < pods || waiting > 0 {
			return fmt.Errorf("%d of %d pods were seen, and %d gates are closed", seen, pods, waiting)
		}
		return nil
	})
}

func gatedClaim(name, class string) corev1.PersistentVolumeClaim {
	return corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}},
		},
	}
}

// gatedPod is the template of a pod at home, with a claim of this name unless it is empty.
func gatedPod(group, claim string, command ...string) corev1.PodTemplateSpec {
	spec := corev1.PodSpec{
		TerminationGracePeriodSeconds: new(int64),
		AutomountServiceAccountToken:  new(bool),
		Containers: []corev1.Container{{
			Name: "main", Image: images.BusyboxName, ImagePullPolicy: corev1.PullIfNotPresent, Command: command,
		}},
	}
	if claim != "" {
		spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
		spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}}}
	}
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{bench.GroupLabel: group}}, Spec: spec}
}

func (e *environment) createGatedSet(ctx context.Context, class string, pods int) error {
	group := "set-" + class
	template := gatedPod(group, "", "sleep", "2147483647")
	template.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	_, err := e.homeClient.AppsV1().StatefulSets(e.namespace).Create(ctx, &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: group},
		Spec: appsv1.StatefulSetSpec{
			Replicas: new(int32(pods)), PodManagementPolicy: appsv1.ParallelPodManagement,
			Selector: &metav1.LabelSelector{MatchLabels: template.Labels}, Template: template,
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{gatedClaim("data", class)},
		},
	}, metav1.CreateOptions{})
	return err
}

// createGatedPods creates this number of bare pods with a claim, and of pods without one.
func (e *environment) createGatedPods(ctx context.Context, name string, pods int) error {
	core := e.homeClient.CoreV1()
	for number := range pods {
		claim := gatedClaim(fmt.Sprintf("%s-%d", name, number), gateClasses[1])
		if _, err := core.PersistentVolumeClaims(e.namespace).Create(ctx, &claim, metav1.CreateOptions{}); err != nil {
			return err
		}
		for group, of := range map[string]string{"bare": claim.Name, "without-claim": ""} {
			template := gatedPod(group, of, "sleep", "2147483647")
			pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
			pod.Name = fmt.Sprintf("%s-%s-%d", name, group, number)
			if _, err := core.Pods(e.namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (e *environment) createGatedJobs(ctx context.Context, jobs int) error {
	for number := range jobs {
		claim := gatedClaim(fmt.Sprintf("job-%d", number), gateClasses[1])
		if _, err := e.homeClient.CoreV1().PersistentVolumeClaims(e.namespace).Create(ctx, &claim, metav1.CreateOptions{}); err != nil {
			return err
		}
		template := gatedPod("job", claim.Name, "true")
		template.Spec.RestartPolicy = corev1.RestartPolicyNever
		job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: claim.Name}, Spec: batchv1.JobSpec{BackoffLimit: new(int32), Template: template}}
		if _, err := e.homeClient.BatchV1().Jobs(e.namespace).Create(ctx, job, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// waitJobs waits until all Jobs have ended, and returns how many failed.
func (e *environment) waitJobs(ctx context.Context, jobs int) (failed int, err error) {
	ctx, cancel := context.WithTimeout(ctx, gateLimit)
	defer cancel()
	err = machine.Until(ctx, "the Jobs to end", func() error {
		found, err := e.homeClient.BatchV1().Jobs(e.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		ended := 0
		failed = 0
		for _, job := range found.Items {
			if job.Status.Failed > 0 {
				failed++
			}
			if job.Status.Failed+job.Status.Succeeded > 0 {
				ended++
			}
		}
		if ended < jobs {
			return fmt.Errorf("%d of %d have", ended, jobs)
		}
		return nil
	})
	return failed, err
}

// scaleController sets the number of its replicas, waits until they are that many, and returns the number before.
func (e *environment) scaleController(ctx context.Context, replicas int32) (before int32, err error) {
	deployments := e.homeClient.AppsV1().Deployments(chart.Namespace)
	found, err := deployments.List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=controller"})
	if err != nil {
		return 0, err
	}
	if len(found.Items) != 1 {
		return 0, fmt.Errorf("the controller has %d Deployments", len(found.Items))
	}
	name, before := found.Items[0].Name, *found.Items[0].Spec.Replicas
	scale := &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: chart.Namespace}, Spec: autoscalingv1.ScaleSpec{Replicas: replicas},
	}
	if _, err := deployments.UpdateScale(ctx, name, scale, metav1.UpdateOptions{}); err != nil {
		return before, err
	}
	return before, machine.Until(ctx, fmt.Sprintf("the controller to have %d replicas", replicas), func() error {
		now, err := deployments.Get(ctx, name, metav1.GetOptions{})
		if err == nil && (now.Status.ReadyReplicas != replicas || now.Status.Replicas != replicas) {
			err = fmt.Errorf("%d of %d are ready", now.Status.ReadyReplicas, now.Status.Replicas)
		}
		return err
	})
}
