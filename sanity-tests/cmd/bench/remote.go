package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"storage.liqo.io/sanity-tests/bench"
	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/fabric"
	"storage.liqo.io/sanity-tests/faults"
	"storage.liqo.io/sanity-tests/machine"
)

const (
	// remoteName is the name of the RemoteCluster and of the Secret with its kubeconfig.
	remoteName      = "bench"
	remoteNode      = "bench-remote"
	remoteRealClass = "reference"
	manyClusters    = 10
)

var remoteClusters = schema.GroupVersionResource{Group: "storage.liqo.io", Version: "v1alpha1", Resource: "remoteclusters"}

// remoteEnvironment is for batches with volumes in the remote cluster.
type remoteEnvironment struct {
	*environment
	cluster *clusters.Cluster
	remote  kubernetes.Interface
	dynamic dynamic.Interface
	fabric  *fabric.Fabric
}

// runRemote measures all batches in the remote cluster, with each delay of the proxy between the
// clusters.
func runRemote(ctx context.Context, home *environment, lab *clusters.Lab, counts []int, delays []time.Duration) (report bench.RemoteReport, err error) {
	env, err := openRemote(ctx, home, lab)
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, env.close(context.WithoutCancel(ctx))) }()
	memory, err := env.driver.IdleMemory()
	if err != nil {
		return report, err
	}
	report.ControllerRSS = memory.ControllerIdle
	proxy := lab.Proxy()
	defer func() {
		err = errors.Join(err, proxy.Set(context.WithoutCancel(ctx), faults.Setting{Mode: faults.Pass}))
	}()
	for _, delay := range delays {
		setting := faults.Setting{Mode: faults.Pass}
		if delay > 0 {
			setting = faults.Setting{Mode: faults.Delay, Up: delay / 2, Down: delay / 2}
		}
		if err := proxy.Set(ctx, setting); err != nil {
			return report, err
		}
		for _, policy := range []string{"Optimistic", "WaitForBound"} {
			for _, n := range counts {
				row, err := env.batch(ctx, policy, n, delay)
				if err != nil {
					return report, fmt.Errorf("%d remote claims, policy %s, %s of delay: %w", n, policy, delay, err)
				}
				report.Rows = append(report.Rows, row)
				fmt.Fprintf(os.Stderr, "remote: %s, %d claims, %s of delay: done\n", policy, n, delay)
			}
		}
	}
	if err := proxy.Set(ctx, faults.Setting{Mode: faults.Pass}); err != nil {
		return report, err
	}
	report.Clusters = manyClusters
	report.ControllerRSSMany, err = env.manyClustersRSS(ctx)
	return report, err
}

func openRemote(ctx context.Context, home *environment, lab *clusters.Lab) (*remoteEnvironment, error) {
	cluster, err := lab.Cluster("home")
	if err != nil {
		return nil, err
	}
	remoteCluster, err := lab.Cluster("remote")
	if err != nil {
		return nil, err
	}
	remote, err := remoteCluster.Client()
	if err != nil {
		return nil, err
	}
	config, err := cluster.Config()
	if err != nil {
		return nil, err
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	env := &remoteEnvironment{environment: home, cluster: remoteCluster, remote: remote, dynamic: objects}
	if err := env.declare(ctx, remoteName); err != nil {
		return nil, err
	}
	options := fabric.Plain(remoteNode)
	options.Home, options.Remote = cluster, remoteCluster
	if options.Labels == nil {
		options.Labels = map[string]string{}
	}
	options.Labels["bench/cluster"] = remoteName
	options.Labels["type"] = "virtual-kubelet"
	if env.fabric, err = fabric.Start(ctx, options); err != nil {
		return nil, errors.Join(err, env.close(ctx))
	}
	return env, machine.Until(ctx, "the driver in the CSINode of the virtual node "+remoteNode, func() error {
		csiNode, err := home.client.StorageV1().CSINodes().Get(ctx, remoteNode, metav1.GetOptions{})
		if err == nil && len(csiNode.Spec.Drivers) == 0 {
			err = errors.New("its CSINode has no drivers")
		}
		return err
	})
}

// declare creates a RemoteCluster with its Secret. All share one API server; those with other names
// than remoteName have no node.
func (e *remoteEnvironment) declare(ctx context.Context, name string) error {
	kubeconfig, err := os.ReadFile(e.cluster.ProxyKubeconfig())
	if err != nil {
		return err
	}
	_, err = e.client.CoreV1().Secrets(chart.Namespace).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: remoteName},
		Data:       map[string][]byte{"kubeconfig": kubeconfig},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "storage.liqo.io/v1alpha1", "kind": "RemoteCluster",
		"metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"kubeconfigSecretRef": map[string]any{"name": remoteName},
			"nodeSelector":        map[string]any{"matchLabels": map[string]any{"bench/cluster": name}},
		},
	}}
	_, err = e.dynamic.Resource(remoteClusters).Create(ctx, object, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		err = nil
	}
	return err
}

// close deletes everything, also after an interrupted batch. A RemoteCluster is deleted when its
// last volume is, and needs the fabric and the Secret until then.
func (e *remoteEnvironment) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	var errs []error
	for i := range manyClusters {
		errs = append(errs, ignoreAbsent(e.dynamic.Resource(remoteClusters).Delete(ctx, clusterName(i), metav1.DeleteOptions{})))
	}
	errs = append(errs, machine.Until(ctx, "the RemoteClusters to be deleted", func() error {
		for i := range manyClusters {
			left, err := e.dynamic.Resource(remoteClusters).Get(ctx, clusterName(i), metav1.GetOptions{})
			if err == nil {
				conditions, _, _ := unstructured.NestedSlice(left.Object, "status", "conditions")
				return fmt.Errorf("%s exists: %v", left.GetName(), conditions)
			}
			if !apierrors.IsNotFound(err) {
				return err
			}
		}
		return nil
	}))
	if e.fabric != nil {
		errs = append(errs, e.fabric.Stop(ctx))
	}
	secret := e.client.CoreV1().Secrets(chart.Namespace).Delete(ctx, remoteName, metav1.DeleteOptions{})
	return errors.Join(append(errs, ignoreAbsent(secret))...)
}

func ignoreAbsent(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func clusterName(i int) string {
	if i == 0 {
		return remoteName
	}
	return fmt.Sprintf("%s-%d", remoteName, i)
}

// manyClustersRSS returns the controller's RSS with manyClusters RemoteClusters.
func (e *remoteEnvironment) manyClustersRSS(ctx context.Context) (int64, error) {
	for i := range manyClusters {
		if err := e.declare(ctx, clusterName(i)); err != nil {
			return 0, err
		}
	}
	err := machine.Until(ctx, "all RemoteClusters to be ready", func() error {
		list, err := e.dynamic.Resource(remoteClusters).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		ready := 0
		for _, object := range list.Items {
			conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
			for _, condition := range conditions {
				typed, ok := condition.(map[string]any)
				if ok && typed["type"] == "Ready" && typed["status"] == "True" {
					ready++
				}
			}
		}
		if ready < manyClusters {
			return fmt.Errorf("%d of %d are ready", ready, manyClusters)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	each, err := e.driver.StableRSS(ctx)
	return slices.Max(append(each, 0)), err
}

// batch measures the same batch in the remote cluster and from home.
func (e *remoteEnvironment) batch(ctx context.Context, policy string, n int, delay time.Duration) (bench.RemoteRow, error) {
	namespace, err := e.namespace(ctx)
	if err != nil {
		return bench.RemoteRow{}, err
	}
	defer func() {
		for _, client := range []kubernetes.Interface{e.client, e.remote} {
			_ = client.CoreV1().Namespaces().Delete(context.WithoutCancel(ctx), namespace, metav1.DeleteOptions{})
		}
	}()
	_, err = e.remote.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil {
		return bench.RemoteRow{}, err
	}
	name := map[string]string{"Optimistic": "bench-optimistic", "WaitForBound": "bench-wait"}[policy]
	class, err := e.ensureClass(ctx, name, map[string]string{"realStorageClass": remoteRealClass, "remoteBindingPolicy": policy})
	if err != nil {
		return bench.RemoteRow{}, err
	}
	row := bench.RemoteRow{Policy: policy, Claims: n, Runs: max(1, samples/n)}
	trip, err := bench.RoundTrip(ctx, e.remote)
	if err != nil {
		return row, err
	}
	// e.remote does not use the proxy.
	row.RoundTrip = trip + delay
	var reals, virtuals, twins []bench.Result
	var cost bench.Cost
	for range row.Runs {
		result, err := bench.Batch{Client: e.remote, Namespace: namespace, Class: remoteRealClass, Node: e.cluster.Nodes()[0].Name, Count: n}.Run(ctx)
		if err != nil {
			return row, err
		}
		reals = append(reals, result)
		twinTimes, err := bench.TwinTimes(ctx, e.remote, namespace)
		if err != nil {
			return row, err
		}
		batch := bench.Batch{Client: e.client, Namespace: namespace, Class: class, Node: remoteNode, Count: n, Sent: map[string]time.Time{}}
		more, err := e.driver.Measure(&e.audit, func() (err error) {
			result, err = batch.Run(ctx)
			return err
		})
		if err != nil {
			return row, err
		}
		twin := twinTimes(batch.Sent)
		virtuals, cost = append(virtuals, result), cost.Add(more)
		if len(twin.Each) > 0 {
			twins = append(twins, twin)
		}
	}
	row.Real, row.Claim = bench.Summarize(reals), bench.Summarize(virtuals)
	if len(twins) > 0 {
		row.Twin = bench.Summarize(twins)
	}
	volumes := row.Claims * row.Runs
	row.CPUPerVolume = cost.CPU / time.Duration(volumes)
	row.WritesPerVolume = float64(cost.Calls.Writes) / float64(volumes)
	return row, nil
}
