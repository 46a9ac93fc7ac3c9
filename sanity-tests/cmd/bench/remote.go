package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
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
	// abroad names the remote cluster and the Secret with its kubeconfig.
	abroad      = "bench"
	abroadNode  = "bench-remote"
	abroadClass = "reference"
	// manyClusters is how many remote clusters the controller is to bear.
	manyClusters = 10
)

var remoteClusters = schema.GroupVersionResource{Group: "storage.liqo.io", Version: "v1alpha1", Resource: "remoteclusters"}

// remoteTrack is where races are held whose volumes are in the other cluster.
type remoteTrack struct {
	*track
	there   *clusters.Cluster
	remote  kubernetes.Interface
	dynamic dynamic.Interface
	fabric  *fabric.Fabric
}

// runRemote holds all races on the remote cluster, at each delay of the proxy
// between the clusters.
func runRemote(ctx context.Context, home *track, lab *clusters.Lab, counts []int, delays []time.Duration) (report bench.RemoteReport, err error) {
	track, err := openRemote(ctx, home, lab)
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, track.close(context.WithoutCancel(ctx))) }()
	if report.ControllerRSS, err = track.rss(); err != nil {
		return report, err
	}
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
				row, err := track.race(ctx, policy, n, delay)
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
	report.ControllerRSSMany, err = track.many(ctx)
	return report, err
}

func openRemote(ctx context.Context, home *track, lab *clusters.Lab) (*remoteTrack, error) {
	cluster, err := lab.Cluster("home")
	if err != nil {
		return nil, err
	}
	there, err := lab.Cluster("remote")
	if err != nil {
		return nil, err
	}
	remote, err := there.Client()
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
	track := &remoteTrack{track: home, there: there, remote: remote, dynamic: objects}
	if err := track.declare(ctx, abroad); err != nil {
		return nil, err
	}
	options := fabric.Plain(abroadNode)
	options.Home, options.Remote = cluster, there
	if options.Labels == nil {
		options.Labels = map[string]string{}
	}
	options.Labels["bench/cluster"] = abroad
	options.Labels["type"] = "virtual-kubelet"
	if track.fabric, err = fabric.Start(ctx, options); err != nil {
		return nil, errors.Join(err, track.close(ctx))
	}
	return track, machine.Until(ctx, "the virtual node "+abroadNode+" to have an entry of the driver", func() error {
		csiNode, err := home.client.StorageV1().CSINodes().Get(ctx, abroadNode, metav1.GetOptions{})
		if err == nil && len(csiNode.Spec.Drivers) == 0 {
			err = errors.New("it has none")
		}
		return err
	})
}

// declare makes a RemoteCluster with its Secret. Those of other names share the
// API server, and stand behind no node.
func (t *remoteTrack) declare(ctx context.Context, name string) error {
	kubeconfig, err := os.ReadFile(t.there.ProxyKubeconfig())
	if err != nil {
		return err
	}
	_, err = t.client.CoreV1().Secrets(chart.Namespace).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: abroad},
		Data:       map[string][]byte{"kubeconfig": kubeconfig},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "storage.liqo.io/v1alpha1", "kind": "RemoteCluster",
		"metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"kubeconfigSecretRef": map[string]any{"name": abroad},
			"nodeSelector":        map[string]any{"matchLabels": map[string]any{"bench/cluster": name}},
		},
	}}
	_, err = t.dynamic.Resource(remoteClusters).Create(ctx, object, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		err = nil
	}
	return err
}

// close ends everything, also after a race that was broken off: the clusters go
// when their last volumes have, and only then the way to them.
func (t *remoteTrack) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	var errs []error
	for i := range manyClusters {
		errs = append(errs, ignoreAbsent(t.dynamic.Resource(remoteClusters).Delete(ctx, clusterName(i), metav1.DeleteOptions{})))
	}
	errs = append(errs, machine.Until(ctx, "the remote clusters to go", func() error {
		for i := range manyClusters {
			left, err := t.dynamic.Resource(remoteClusters).Get(ctx, clusterName(i), metav1.GetOptions{})
			if err == nil {
				conditions, _, _ := unstructured.NestedSlice(left.Object, "status", "conditions")
				return fmt.Errorf("%s is there: %v", left.GetName(), conditions)
			}
			if !apierrors.IsNotFound(err) {
				return err
			}
		}
		return nil
	}))
	if t.fabric != nil {
		errs = append(errs, t.fabric.Stop(ctx))
	}
	secret := t.client.CoreV1().Secrets(chart.Namespace).Delete(ctx, abroad, metav1.DeleteOptions{})
	return errors.Join(append(errs, ignoreAbsent(secret))...)
}

func ignoreAbsent(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// clusterName is the first cluster's own name, then others.
func clusterName(i int) string {
	if i == 0 {
		return abroad
	}
	return fmt.Sprintf("%s-%d", abroad, i)
}

// many reads the controller's memory with more remote clusters.
func (t *remoteTrack) many(ctx context.Context) (int64, error) {
	for i := range manyClusters {
		if err := t.declare(ctx, clusterName(i)); err != nil {
			return 0, err
		}
	}
	err := machine.Until(ctx, "all remote clusters to be ready", func() error {
		list, err := t.dynamic.Resource(remoteClusters).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		ready := 0
		for _, object := range list.Items {
			conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
			for _, condition := range conditions {
				one, is := condition.(map[string]any)
				if is && one["type"] == "Ready" && one["status"] == "True" {
					ready++
				}
			}
		}
		if ready < manyClusters {
			return fmt.Errorf("%d of %d are", ready, manyClusters)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	each, err := t.driver.SettledRSS(ctx)
	return slices.Max(append(each, 0)), err
}

func (t *remoteTrack) rss() (int64, error) {
	memory, err := t.driver.IdleMemory()
	return memory.ControllerIdle, err
}

// race holds the same race in the remote cluster itself and from home.
func (t *remoteTrack) race(ctx context.Context, policy string, n int, delay time.Duration) (bench.RemoteRow, error) {
	namespace, err := t.namespace(ctx)
	if err != nil {
		return bench.RemoteRow{}, err
	}
	defer func() {
		for _, client := range []kubernetes.Interface{t.client, t.remote} {
			_ = client.CoreV1().Namespaces().Delete(context.WithoutCancel(ctx), namespace, metav1.DeleteOptions{})
		}
	}()
	_, err = t.remote.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil {
		return bench.RemoteRow{}, err
	}
	class, err := t.remoteClass(ctx, policy)
	if err != nil {
		return bench.RemoteRow{}, err
	}
	row := bench.RemoteRow{Policy: policy, Claims: n, Heats: max(1, samples/n)}
	trip, err := bench.RoundTrip(ctx, t.remote)
	if err != nil {
		return row, err
	}
	// What the proxy adds is known exactly; the rest was just measured.
	row.RoundTrip = trip + delay
	var alone, ours, twins []bench.Heat
	var cost bench.Cost
	for range row.Heats {
		heat, err := bench.Race{Client: t.remote, Namespace: namespace, Class: abroadClass, Node: t.there.Nodes()[0].Name, Count: n}.Run(ctx)
		if err != nil {
			return row, err
		}
		alone = append(alone, heat)
		since, err := bench.TwinTimes(ctx, t.remote, namespace)
		if err != nil {
			return row, err
		}
		race := bench.Race{Client: t.client, Namespace: namespace, Class: class, Node: abroadNode, Count: n, Sent: map[string]time.Time{}}
		more, err := t.driver.Measure(&t.audit, func() (err error) {
			heat, err = race.Run(ctx)
			return err
		})
		if err != nil {
			return row, err
		}
		twin := since(race.Sent)
		ours, cost = append(ours, heat), cost.And(more)
		if len(twin.Each) > 0 {
			twins = append(twins, twin)
		}
	}
	row.Real, row.Claim = bench.Summary(alone), bench.Summary(ours)
	if len(twins) > 0 {
		row.Twin = bench.Summary(twins)
	}
	volumes := row.Claims * row.Heats
	row.CPUPerVolume = cost.CPU / time.Duration(volumes)
	row.WritesPerVolume = float64(cost.Calls.Writes) / float64(volumes)
	return row, nil
}

// remoteClass makes a virtual class with this policy, if there is none yet.
func (t *remoteTrack) remoteClass(ctx context.Context, policy string) (string, error) {
	wait := storagev1.VolumeBindingWaitForFirstConsumer
	names := map[string]string{"Optimistic": "bench-optimistic", "WaitForBound": "bench-wait"}
	_, err := t.client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{Name: names[policy]},
		Provisioner:       provisioner,
		Parameters:        map[string]string{"realStorageClass": abroadClass, "remoteBindingPolicy": policy},
		VolumeBindingMode: &wait,
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		err = nil
	}
	return names[policy], err
}
