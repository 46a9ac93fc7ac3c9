package faults

import (
	"context"
	"errors"
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

// victims are everything that works for a volume: components of the cluster by name, containers of the
// driver as component/container.
var victims = []string{
	"kube-controller-manager", "kubelet@home-1", "kubelet@home-2",
	"node/driver", "controller/driver", "controller/csi-provisioner", "controller/csi-attacher",
}

// killsPerVolume limits the kills, so that slow machines do not have more of them.
const killsPerVolume = 3

// maxExtra is the number of additional volumes until every victim was killed once.
const maxExtra = 5

// Everything that works for a volume is killed at random times: controllers, node plugins, sidecars,
// kubelets, kube-controller-manager.
func TestVolumesSurviveRandomKills(t *testing.T) {
	cluster := user.Cluster(t, "home")
	install(t, cluster, 2)
	checkLeaks(t, cluster)
	killer := startKiller(t, cluster, seed(), killsPerVolume**cycles)

	classes := []string{"liqo-reference", "liqo-reference-attach", "liqo-reference-local", "liqo-reference-ext4", "liqo-local-path"}
	t.Run(fmt.Sprintf("volumes with seed %d", seed()), func(t *testing.T) {
		t.Run("at once", func(t *testing.T) {
			for i := range *cycles {
				t.Run(strconv.Itoa(i), func(t *testing.T) {
					t.Parallel()
					exercise(t, user.NewNamespace(t, cluster), classes[i%len(classes)])
				})
			}
		})
		// With few volumes, not every victim may have been killed.
		for i := 0; i < maxExtra && !killer.killedAll(); i++ {
			t.Run(fmt.Sprintf("one more, %d", i), func(t *testing.T) { exercise(t, user.NewNamespace(t, cluster), classes[i%len(classes)]) })
		}
	})
	kills := killer.stop()
	for _, victim := range victims {
		if kills[victim] == 0 {
			t.Errorf("%s was never killed: the kills were %v", victim, kills)
		}
	}
	for victim, kills := range kills {
		t.Run(fmt.Sprintf("%d kills of %s", kills, victim), func(*testing.T) {})
	}
}

// killer kills victims until it is stopped, or has killed enough.
type killer struct {
	cluster *clusters.Cluster
	client  kubernetes.Interface
	random  *rand.Rand

	// next are the remaining victims of this round, in order.
	next   []string
	cancel context.CancelFunc
	done   sync.WaitGroup

	mutex sync.Mutex
	kills map[string]int
}

func startKiller(t *testing.T, cluster *clusters.Cluster, seed int64, most int) *killer {
	t.Helper()
	client, err := cluster.Client()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	k := &killer{cluster: cluster, client: client, random: rand.New(rand.NewPCG(uint64(seed), 0)), cancel: cancel, kills: map[string]int{}}
	t.Cleanup(func() { k.stop() })
	k.done.Go(func() {
		for killed := 0; ctx.Err() == nil && (killed < most || !k.killedAll()); {
			victim, err := k.killNext(ctx)
			switch {
			case err == nil:
				killed++
				k.record(victim)
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

func (k *killer) record(victim string) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	k.kills[victim]++
}

// killedAll reports whether every victim was killed at least once.
func (k *killer) killedAll() bool {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	return len(k.kills) == len(victims)
}

// stop stops, and returns the number of kills by victim.
func (k *killer) stop() map[string]int {
	k.cancel()
	k.done.Wait()
	return k.kills
}

// killNext kills the next victim. Each round has every victim once, in random order, so that short runs
// kill all of them.
func (k *killer) killNext(ctx context.Context) (victim string, err error) {
	if len(k.next) == 0 {
		k.next = slices.Clone(victims)
		k.random.Shuffle(len(k.next), func(i, j int) { k.next[i], k.next[j] = k.next[j], k.next[i] })
	}
	victim, k.next = k.next[0], k.next[1:]
	component, container, isContainer := strings.Cut(victim, "/")
	if !isContainer {
		// Not the test's context, because the victim must be restarted.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), user.Timeout)
		defer cancel()
		return victim, k.restart(ctx, victim)
	}
	running, err := k.running(ctx, component, container)
	if err == nil && len(running) == 0 {
		err = errors.New("none is running")
	}
	if err != nil {
		k.next = append(k.next, victim) // retry later
		return victim, err
	}
	return victim, killContainer(running[k.random.IntN(len(running))])
}

// restart kills a component and restarts it.
func (k *killer) restart(ctx context.Context, component string) error {
	_, name, isKubelet := strings.Cut(component, "@")
	if !isKubelet {
		return k.cluster.Restart(ctx, component)
	}
	node, err := k.cluster.Node(name)
	if err != nil {
		return err
	}
	if err := k.cluster.Kill(ctx, component); err != nil {
		return err
	}
	return errors.Join(repairVolumeData(ctx, k.client, node), k.cluster.Restart(ctx, component))
}

// running returns the ids of a container in all pods of a component.
func (k *killer) running(ctx context.Context, component, name string) (ids []string, err error) {
	pods, err := k.client.CoreV1().Pods(chart.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=" + component})
	if err != nil {
		return nil, err
	}
	for _, pod := range pods.Items {
		for _, container := range pod.Status.ContainerStatuses {
			if _, id, found := strings.Cut(container.ContainerID, "://"); found && container.Name == name && container.State.Running != nil {
				ids = append(ids, id)
			}
		}
	}
	return ids, nil
}

// killContainer kills the first process in the cgroup of a container.
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
		return fmt.Errorf("container %s has no process", id)
	}
	process, err := os.FindProcess(slices.Min(pids))
	if err != nil {
		return err
	}
	return process.Kill()
}
