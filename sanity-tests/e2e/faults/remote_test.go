package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/faults"
)

const (
	// callTimeout and rpcTimeout are shorter than in the chart (10 s and 60 s), or
	// to outlast them would take minutes.
	callTimeout = 4 * time.Second
	rpcTimeout  = 10 * time.Second
	// outlasting is longer than all of them together, with the retries between them.
	outlasting = 2*callTimeout + 2*rpcTimeout
)

// What is between the clusters fails in all the ways it can, while volumes are
// made and deleted. Nothing here runs in parallel: everybody would be disturbed.
func TestTroubleBetweenClusters(t *testing.T) {
	home, remote := user.Cluster(t, "home"), user.Cluster(t, "remote")
	values := hurried(2)
	controller := values["controller"].(chart.Values)
	controller["callTimeout"] = callTimeout.String()
	controller["provisioner"] = chart.Values{"retryIntervalMax": "5s", "timeout": rpcTimeout.String()}
	t.Run(fmt.Sprintf("timeouts shortened: %v", controller), func(*testing.T) {})
	err := driver.Install(t.Context(), home, driver.Options{Values: values, Progress: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	for _, trouble := range []leg[*neighbour]{
		{"the link is cut while a volume is made", cutWhileMade},
		{"the link is cut while a volume is deleted", cutWhileDeleted},
		{"the namespace there is deleted", namespaceDeleted},
		{"home is restored from a backup without a volume whose twin is deleted then", restoredAtHome},
		{"the API server there starts again and again", restarted},
		{"each call takes 50 ms", slowed(faults.Setting{Mode: faults.Delay, Up: 25 * time.Millisecond, Down: 25 * time.Millisecond}, true)},
		// A call over a new connection is three round trips, which callTimeout has to allow for.
		{"each call takes 1 s", slowed(faults.Setting{Mode: faults.Delay, Up: 500 * time.Millisecond, Down: 500 * time.Millisecond}, true)},
		{"the link is cut while a volume moves", cutWhileMoved},
		{"movers, relay and controller are killed while a volume moves", killedWhileMoved},
		{"calls hang", slowed(faults.Setting{Mode: faults.Hang}, false)},
	} {
		t.Run(trouble.name, func(t *testing.T) {
			accounted(t, home, remote)
			b := newNeighbour(t)
			b.declare(t)
			b.ready()
			trouble.run(t, b)
		})
	}
}

func cutWhileMade(t *testing.T, b *neighbour) {
	heal := cut(t)
	b.here.Claim("far", "liqo-reference", "64Mi")
	b.here.Pod("far", "far", b.onIt)
	b.here.WaitEvent("far", "ProvisioningFailed", b.id)
	// Who stays at home does not notice.
	live(t, b.here, "liqo-reference", user.OnNode("home-1"))
	b.lasting(t, "the claim stays Pending", func(ctx context.Context) (string, error) {
		claim, err := b.here.Client.CoreV1().PersistentVolumeClaims(b.here.Name).Get(ctx, "far", metav1.GetOptions{})
		if err == nil && claim.Status.Phase != corev1.ClaimPending {
			return fmt.Sprintf("it is %s", claim.Status.Phase), nil
		}
		return "", err
	})
	heal()
	b.here.WaitReady("far")
	b.oneTwinEach()
	write(b.there, "far", b.here.Name)
	read(t, b.there, "far", b.here.Name)
	b.here.DeletePod("far")
	deleteClaim(b.here, "far")
	b.oneTwinEach()
}

func cutWhileDeleted(t *testing.T, b *neighbour) {
	b.here.Claim("far", "liqo-reference", "64Mi")
	b.here.Pod("far", "far", b.onIt)
	b.here.WaitReady("far")
	write(b.there, "far", b.here.Name)
	volume := b.here.WaitBound("far")
	real := b.follow("far").Real
	b.here.DeletePod("far")

	heal := cut(t)
	deleteClaim(b.here, "far")
	b.waitVolumeEvent(volume.Name, "VolumeFailedDelete", b.id)
	b.lasting(t, "volume and twin stay", func(ctx context.Context) (string, error) {
		_, here := b.here.Client.CoreV1().PersistentVolumes().Get(ctx, volume.Name, metav1.GetOptions{})
		_, there := b.there.Client.CoreV1().PersistentVolumes().Get(ctx, real.Name, metav1.GetOptions{})
		err := errors.Join(here, there)
		if apierrors.IsNotFound(here) || apierrors.IsNotFound(there) {
			return err.Error(), nil
		}
		return "", err
	})
	heal()
	b.here.Eventually("volume, twin and data go away", func(ctx context.Context) (string, error) {
		_, err := b.here.Client.CoreV1().PersistentVolumes().Get(ctx, volume.Name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return "the volume is still there", err
		}
		// Success means that the data is gone already.
		if _, err := b.there.Client.CoreV1().PersistentVolumes().Get(ctx, real.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			user.Violated(t, "the volume was reported deleted, its real volume %s is still there: %v", real.Name, err)
		}
		return "", nil
	})
	b.oneTwinEach()
}

func restarted(t *testing.T, b *neighbour) {
	const server, half = "kube-apiserver", 5
	t.Cleanup(func() { // of a test that failed in between
		if err := b.there.Cluster.Restart(context.Background(), server); err != nil {
			t.Error(err)
		}
	})
	again := func() {
		t.Helper()
		if err := b.there.Cluster.Restart(t.Context(), server); err != nil {
			t.Fatal(err)
		}
	}
	b.claims("old", half)
	for _, name := range names("old", half) {
		b.here.WaitBound(name)
	}
	if err := b.there.Cluster.Kill(t.Context(), server); err != nil {
		t.Fatal(err)
	}
	b.claims("new", half)
	b.deletion(t, "old", half)
	again()
	b.here.WaitBound("new-0") // one is made, others are on their way
	again()
	b.oneTwinEach()
	b.deletion(t, "new", half)
	again()
	b.oneTwinEach()
}

// slowed makes and deletes claims while calls to the cluster are disturbed; what
// does not get through then gets through later.
func slowed(setting faults.Setting, through bool) func(*testing.T, *neighbour) {
	return func(t *testing.T, b *neighbour) {
		const some = 4
		b.claims("old", some)
		b.oneTwinEach()
		proxy := user.Lab(t).Proxy()
		pass := func() {
			if err := proxy.Set(context.Background(), faults.Setting{Mode: faults.Pass}); err != nil {
				t.Error(err)
			}
		}
		t.Cleanup(pass)
		if err := proxy.Set(t.Context(), setting); err != nil {
			t.Fatal(err)
		}
		b.claims("new", some)
		b.deletion(t, "old", some)
		if through {
			b.oneTwinEach()
		} else {
			b.here.WaitEvent("new-0", "ProvisioningFailed", b.id)
		}
		pass()
		b.oneTwinEach()
		b.deletion(t, "new", some)
		b.oneTwinEach()
	}
}

func namespaceDeleted(t *testing.T, b *neighbour) {
	b.here.Claim("far", "liqo-reference", "64Mi")
	b.here.Pod("writer", "far", b.onIt)
	b.here.WaitReady("writer")
	write(b.there, "writer", b.here.Name)
	b.here.DeletePod("writer")
	was := b.follow("far")
	namespaces := b.there.Client.CoreV1().Namespaces()
	if err := namespaces.Delete(t.Context(), b.there.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	b.there.Eventually("the namespace goes away", func(ctx context.Context) (string, error) {
		found, err := namespaces.Get(ctx, b.there.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return fmt.Sprint(found.Status.Conditions), err
	})
	b.waitIll("far")
	b.there.WantRetained(was.Real.Name)

	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: b.there.Name}}
	if _, err := namespaces.Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	b.madeAgain(was)
	b.oneTwinEach()
	b.here.Pod("reader", "far", b.onIt)
	b.here.WaitReady("reader")
	read(t, b.there, "reader", b.here.Name)
	b.here.DeletePod("reader")
	deleteClaim(b.here, "far")
	b.oneTwinEach()
}

// restoredAtHome restores home from a backup that is older than claim and volume, and
// then has somebody delete the twin.
func restoredAtHome(t *testing.T, b *neighbour) {
	backup, err := b.here.Cluster.Backup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b.here.Claim("far", "liqo-reference", "64Mi")
	b.here.Pod("writer", "far", b.onIt)
	b.here.WaitReady("writer")
	write(b.there, "writer", b.here.Name)
	b.here.DeletePod("writer")
	was := b.follow("far")

	if err := backup.Restore(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.here.Client.CoreV1().PersistentVolumes().Get(t.Context(), was.Object.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Fatalf("home is to know nothing of the volume %s: %v", was.Object.Name, err)
	}
	b.ready()

	if err := b.there.Client.CoreV1().PersistentVolumeClaims(b.there.Name).Delete(t.Context(), "far", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	b.oneTwinEach()
	volumes := b.there.Client.CoreV1().PersistentVolumes()
	kept := b.there.WantRetained(was.Real.Name)

	// Who is told that it is there disposes of it.
	patch := []byte(`{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`)
	if _, err := volumes.Patch(t.Context(), kept.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	b.there.Eventually("the data goes", func(ctx context.Context) (string, error) {
		_, err := volumes.Get(ctx, kept.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "its volume is there", err
	})
}

// cut cuts the link between the clusters, until it is healed.
func cut(t *testing.T) (heal func()) {
	t.Helper()
	lab := user.Lab(t)
	heal = func() {
		if err := lab.Partition(context.Background(), false); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(heal)
	if err := lab.Partition(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	return heal
}

// lasting watches for longer than every timeout that something stays as it is.
func (b *neighbour) lasting(t *testing.T, what string, wrong func(ctx context.Context) (string, error)) {
	t.Helper()
	began := time.Now()
	b.here.Eventually(what, func(ctx context.Context) (string, error) {
		now, err := wrong(ctx)
		if now != "" {
			user.ViolatedNow(t, "%s: after %v not any more: %s", what, time.Since(began), now)
		}
		if left := outlasting - time.Since(began); left > 0 {
			return fmt.Sprintf("another %v to be watched", left), err
		}
		return "", err
	})
}

func names(prefix string, count int) (all []string) {
	for i := range count {
		all = append(all, fmt.Sprintf("%s-%d", prefix, i))
	}
	return all
}

// claims makes claims whose twins need no pod, as if pods had been sent to the
// virtual node.
func (b *neighbour) claims(prefix string, count int) {
	for _, name := range names(prefix, count) {
		b.here.Claim(name, "liqo-reference-immediate", "16Mi", func(claim *corev1.PersistentVolumeClaim) {
			claim.Annotations = map[string]string{"volume.kubernetes.io/selected-node": b.id}
		})
	}
}

// deletion asks for claims to be deleted.
func (b *neighbour) deletion(t *testing.T, prefix string, count int) {
	t.Helper()
	for _, name := range names(prefix, count) {
		if err := b.here.Client.CoreV1().PersistentVolumeClaims(b.here.Name).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// waitVolumeEvent waits until somebody says something about a PersistentVolume.
func (b *neighbour) waitVolumeEvent(volume, reason, word string) {
	b.here.Eventually("an event about volume "+volume, func(ctx context.Context) (string, error) {
		events, err := b.here.Client.CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{
			FieldSelector: "involvedObject.name=" + volume,
		})
		if err != nil {
			return "", err
		}
		var told []string
		for _, event := range events.Items {
			if event.Reason == reason && strings.Contains(event.Message, word) {
				return "", nil
			}
			told = append(told, event.Reason+": "+event.Message)
		}
		return "told was " + strings.Join(told, " | "), nil
	})
}

// waitIll waits until the user is told that a claim has no twin, by an event and
// on the claim itself.
func (b *neighbour) waitIll(name string) {
	b.here.Eventually("claim "+name+" says that it has no twin", func(ctx context.Context) (string, error) {
		claim, err := b.here.Client.CoreV1().PersistentVolumeClaims(b.here.Name).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		for _, condition := range claim.Status.Conditions {
			if condition.Type == "storage.liqo.io/TwinReady" && condition.Status == corev1.ConditionFalse {
				return "", nil
			}
		}
		return fmt.Sprint(claim.Status.Conditions), nil
	})
	b.here.Eventually("an event says so", func(ctx context.Context) (string, error) {
		events, err := b.here.Client.CoreV1().Events(b.here.Name).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + name})
		if err != nil {
			return "", err
		}
		for _, event := range events.Items {
			if event.Reason == "TwinTerminating" || event.Reason == "TwinVanished" {
				return "", nil
			}
		}
		return fmt.Sprintf("%d others", len(events.Items)), nil
	})
}
