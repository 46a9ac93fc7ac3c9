package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/e2e/user"
)

// Everything that takes part in the life of a volume is killed at random
// moments: controllers, node plugins, sidecars, kubelets, kube-controller-manager.
func TestLifeAmongKills(t *testing.T) {
	cluster := user.Cluster(t, "home")
	install(t, cluster, 2)
	if *seed == 0 {
		*seed = time.Now().UnixNano()
	}
	accounted(t, cluster)
	killer := startKiller(t, cluster, *seed)

	classes := []string{"liqo-reference", "liqo-reference-attach", "liqo-reference-local", "liqo-reference-ext4", "liqo-local-path"}
	t.Run(fmt.Sprintf("volumes with seed %d", *seed), func(t *testing.T) {
		for i := range *cycles {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				live(t, user.NewNamespace(t, cluster), classes[i%len(classes)])
			})
		}
	})
	kills := killer.stop()
	for _, victim := range []string{"kube-controller-manager", "kubelet@home-1", "kubelet@home-2", "node/driver", "controller/driver", "controller/csi-provisioner", "controller/csi-attacher"} {
		if kills[victim] == 0 {
			t.Errorf("%s was never killed: the kills were %v", victim, kills)
		}
	}
	for victim, kills := range kills {
		t.Run(fmt.Sprintf("%d kills of %s", kills, victim), func(*testing.T) {})
	}
}

// killer kills one thing after the other until it is stopped.
type killer struct {
	cluster *clusters.Cluster
	client  kubernetes.Interface
	random  *rand.Rand

	strikes int
	cancel  context.CancelFunc
	done    sync.WaitGroup
	kills   map[string]int
}

func startKiller(t *testing.T, cluster *clusters.Cluster, seed int64) *killer {
	t.Helper()
	client, err := cluster.Client()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	k := &killer{cluster: cluster, client: client, random: rand.New(rand.NewPCG(uint64(seed), 0)), cancel: cancel, kills: map[string]int{}}
	t.Cleanup(func() { k.stop() })
	k.done.Go(func() {
		for ctx.Err() == nil {
			victim, err := k.strike(ctx)
			switch {
			case err == nil:
				k.kills[victim]++
			case ctx.Err() == nil:
				t.Logf("killing %s: %v", victim, err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(time.Second + time.Duration(k.random.Int64N(int64(4*time.Second)))):
			}
		}
	})
	return k
}

// stop ends the killing, and tells what was killed how often.
func (k *killer) stop() map[string]int {
	k.cancel()
	k.done.Wait()
	return k.kills
}

// strike kills one thing: a component of the cluster, or a container of the driver.
func (k *killer) strike(ctx context.Context) (victim string, err error) {
	components := []string{"kube-controller-manager"}
	for _, node := range k.cluster.Nodes() {
		components = append(components, "kubelet@"+node.Name)
	}
	// Every fourth is one of these, so that each kind is among the victims of any seed.
	if k.strikes++; k.strikes%4 == 0 {
		victim = components[(k.strikes/4)%len(components)]
		// Not the test's context: what is killed is also started again.
		return victim, k.cluster.Restart(context.WithoutCancel(ctx), victim)
	}
	pods, err := k.client.CoreV1().Pods(chart.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return "some container", err
	}
	var running [][2]string // what it is, and its id
	for _, pod := range pods.Items {
		for _, container := range pod.Status.ContainerStatuses {
			if _, id, found := strings.Cut(container.ContainerID, "://"); found && container.State.Running != nil {
				running = append(running, [2]string{pod.Labels["app.kubernetes.io/component"] + "/" + container.Name, id})
			}
		}
	}
	if len(running) == 0 {
		return "some container", fmt.Errorf("none runs")
	}
	chosen := running[k.random.IntN(len(running))]
	return chosen[0], killContainer(chosen[1])
}

// killContainer kills the first process of a container, known by its cgroup.
func killContainer(id string) error {
	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return err
	}
	var pids []int
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && strings.Contains(string(text), id) {
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	if len(pids) == 0 {
		return fmt.Errorf("no process of container %s is left", id)
	}
	process, err := os.FindProcess(slices.Min(pids))
	if err != nil {
		return err
	}
	return process.Kill()
}
