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
	// callTimeout and rpcTimeout are shorter than the defaults (10 s and 60 s), so that tests can outlast
	// them.
	callTimeout = 4 * time.Second
	rpcTimeout  = 10 * time.Second
	// outlasting is longer than all of them together, with their retries.
	outlasting = 2*callTimeout + 2*rpcTimeout
)

// Faults of the connection between the clusters while volumes are created and deleted. The subtests are
// not parallel, because they share the connection.
func TestFaultsBetweenClusters(t *testing.T) {
	home, remote := user.Cluster(t, "home"), user.Cluster(t, "remote")
	values := shortTimeouts(2)
	controller := values["controller"].(chart.Values)
	controller["callTimeout"] = callTimeout.String()
	controller["provisioner"] = chart.Values{"retryIntervalMax": "5s", "timeout": rpcTimeout.String()}
	t.Run(fmt.Sprintf("timeouts shortened: %v", controller), func(*testing.T) {})
	err := driver.Install(t.Context(), home, driver.Options{Values: values, Progress: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	for _, leg := range []leg[*remoteSetup]{
		{"the link is cut while a volume is created", cutWhileMade},
		{"the link is cut while a volume is deleted", cutWhileDeleted},
		{"the remote namespace is deleted", namespaceDeleted},
		{"home is restored from a backup without a volume, whose twin is then deleted", restoredAtHome},
		{"the remote API server restarts repeatedly", restarted},
		{"each call takes 50 ms", slowed(faults.Setting{Mode: faults.Delay, Up: 25 * time.Millisecond, Down: 25 * time.Millisecond}, true)},
		// A call over a new connection takes three round trips, less than callTimeout.
		{"each call takes 1 s", slowed(faults.Setting{Mode: faults.Delay, Up: 500 * time.Millisecond, Down: 500 * time.Millisecond}, true)},
		{"the link is cut while a volume moves", cutWhileMoved},
		{"movers, relay and controller are killed while a volume moves", killedWhileMoved},
		{"calls hang", slowed(faults.Setting{Mode: faults.Hang}, false)},
	} {
		t.Run(leg.name, func(t *testing.T) {
			checkLeaks(t, home, remote)
			b := newRemoteSetup(t)
			b.declare(t)
			b.waitReady()
			leg.run(t, b)
		})
	}
}

func cutWhileMade(t *testing.T, b *remoteSetup) {
	heal := cut(t)
	b.home.Claim("far", "liqo-reference", "64Mi")
	b.home.Pod("far", "far", b.onVirtualNode)
	b.home.WaitEvent("far", "ProvisioningFailed", b.id)
	// Volumes at home are not affected.
	exercise(t, b.home, "liqo-reference", user.OnNode("home-1"))
	b.wantUnchanged(t, "the claim stays Pending", func(ctx context.Context) (string, error) {
		claim, err := b.home.Client.CoreV1().PersistentVolumeClaims(b.home.Name).Get(ctx, "far", metav1.GetOptions{})
		if err == nil && claim.Status.Phase != corev1.ClaimPending {
			return fmt.Sprintf("it is %s", claim.Status.Phase), nil
		}
		return "", err
	})
	heal()
	b.home.WaitReady("far")
	b.waitOneTwinEach()
	write(b.remote, "far", b.home.Name)
	read(t, b.remote, "far", b.home.Name)
	b.home.DeletePod("far")
	deleteClaim(b.home, "far")
	b.waitOneTwinEach()
}

func cutWhileDeleted(t *testing.T, b *remoteSetup) {
	b.home.Claim("far", "liqo-reference", "64Mi")
	b.home.Pod("far", "far", b.onVirtualNode)
	b.home.WaitReady("far")
	write(b.remote, "far", b.home.Name)
	volume := b.home.WaitBound("far")
	real := b.follow("far").Real
	b.home.DeletePod("far")

	heal := cut(t)
	deleteClaim(b.home, "far")
	b.waitVolumeEvent(volume.Name, "VolumeFailedDelete", b.id)
	b.wantUnchanged(t, "volume and twin stay", func(ctx context.Context) (string, error) {
		_, home := b.home.Client.CoreV1().PersistentVolumes().Get(ctx, volume.Name, metav1.GetOptions{})
		_, remote := b.remote.Client.CoreV1().PersistentVolumes().Get(ctx, real.Name, metav1.GetOptions{})
		err := errors.Join(home, remote)
		if apierrors.IsNotFound(home) || apierrors.IsNotFound(remote) {
			return err.Error(), nil
		}
		return "", err
	})
	heal()
	b.home.Eventually("volume, twin and data are deleted", func(ctx context.Context) (string, error) {
		_, err := b.home.Client.CoreV1().PersistentVolumes().Get(ctx, volume.Name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return "the volume exists", err
		}
		// The data must be deleted before the volume.
		if _, err := b.remote.Client.CoreV1().PersistentVolumes().Get(ctx, real.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			user.Violated(t, "the volume was deleted, but its real volume %s exists: %v", real.Name, err)
		}
		return "", nil
	})
	b.waitOneTwinEach()
}

func restarted(t *testing.T, b *remoteSetup) {
	const server, half = "kube-apiserver", 5
	t.Cleanup(func() { // after a failure
		if err := b.remote.Cluster.Restart(context.Background(), server); err != nil {
			t.Error(err)
		}
	})
	again := func() {
		t.Helper()
		if err := b.remote.Cluster.Restart(t.Context(), server); err != nil {
			t.Fatal(err)
		}
	}
	b.createClaims("old", half)
	for _, name := range names("old", half) {
		b.home.WaitBound(name)
	}
	if err := b.remote.Cluster.Kill(t.Context(), server); err != nil {
		t.Fatal(err)
	}
	b.createClaims("new", half)
	b.deleteClaims(t, "old", half)
	again()
	b.home.WaitBound("new-0") // others are in progress
	again()
	b.waitOneTwinEach()
	b.deleteClaims(t, "new", half)
	again()
	b.waitOneTwinEach()
}

// slowed creates and deletes claims with a fault of the proxy. If calls cannot succeed with the fault, they
// must succeed after it.
func slowed(setting faults.Setting, succeeds bool) func(*testing.T, *remoteSetup) {
	return func(t *testing.T, b *remoteSetup) {
		const some = 4
		b.createClaims("old", some)
		b.waitOneTwinEach()
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
		b.createClaims("new", some)
		b.deleteClaims(t, "old", some)
		if succeeds {
			b.waitOneTwinEach()
		} else {
			b.home.WaitEvent("new-0", "ProvisioningFailed", b.id)
		}
		pass()
		b.waitOneTwinEach()
		b.deleteClaims(t, "new", some)
		b.waitOneTwinEach()
	}
}

func namespaceDeleted(t *testing.T, b *remoteSetup) {
	b.home.Claim("far", "liqo-reference", "64Mi")
	b.home.Pod("writer", "far", b.onVirtualNode)
	b.home.WaitReady("writer")
	write(b.remote, "writer", b.home.Name)
	b.home.DeletePod("writer")
	was := b.follow("far")
	namespaces := b.remote.Client.CoreV1().Namespaces()
	if err := namespaces.Delete(t.Context(), b.remote.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	b.remote.Eventually("the namespace is deleted", func(ctx context.Context) (string, error) {
		found, err := namespaces.Get(ctx, b.remote.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return fmt.Sprint(found.Status.Conditions), err
	})
	b.waitTwinMissing("far")
	b.remote.WantRetained(was.Real.Name)

	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: b.remote.Name}}
	if _, err := namespaces.Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	b.waitRecovered(was)
	b.waitOneTwinEach()
	b.home.Pod("reader", "far", b.onVirtualNode)
	b.home.WaitReady("reader")
	read(t, b.remote, "reader", b.home.Name)
	b.home.DeletePod("reader")
	deleteClaim(b.home, "far")
	b.waitOneTwinEach()
}

// restoredAtHome restores home from a backup that is older than claim and volume, and then deletes the
// twin.
func restoredAtHome(t *testing.T, b *remoteSetup) {
	backup, err := b.home.Cluster.Backup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b.home.Claim("far", "liqo-reference", "64Mi")
	b.home.Pod("writer", "far", b.onVirtualNode)
	b.home.WaitReady("writer")
	write(b.remote, "writer", b.home.Name)
	b.home.DeletePod("writer")
	was := b.follow("far")

	if err := backup.Restore(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.home.Client.CoreV1().PersistentVolumes().Get(t.Context(), was.Virtual.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Fatalf("the volume %s exists at home after the restore: %v", was.Virtual.Name, err)
	}
	b.waitReady()

	if err := b.remote.Client.CoreV1().PersistentVolumeClaims(b.remote.Name).Delete(t.Context(), "far", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	b.waitOneTwinEach()
	volumes := b.remote.Client.CoreV1().PersistentVolumes()
	kept := b.remote.WantRetained(was.Real.Name)

	// An administrator deletes the data.
	patch := []byte(`{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`)
	if _, err := volumes.Patch(t.Context(), kept.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	b.remote.Eventually("the data is deleted", func(ctx context.Context) (string, error) {
		_, err := volumes.Get(ctx, kept.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "its volume exists", err
	})
}

// cut cuts the link between the clusters until heal is called.
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

// wantUnchanged checks for longer than every timeout that something does not change.
func (b *remoteSetup) wantUnchanged(t *testing.T, what string, wrong func(ctx context.Context) (string, error)) {
	t.Helper()
	began := time.Now()
	b.home.Eventually(what, func(ctx context.Context) (string, error) {
		now, err := wrong(ctx)
		if now != "" {
			user.ViolatedNow(t, "%s: changed after %v: %s", what, time.Since(began), now)
		}
		if left := outlasting - time.Since(began); left > 0 {
			return fmt.Sprintf("checking for another %v", left), err
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

// createClaims creates claims with the virtual node selected, as if they had pods on it.
func (b *remoteSetup) createClaims(prefix string, count int) {
	for _, name := range names(prefix, count) {
		b.home.Claim(name, "liqo-reference-immediate", "16Mi", func(claim *corev1.PersistentVolumeClaim) {
			claim.Annotations = map[string]string{"volume.kubernetes.io/selected-node": b.id}
		})
	}
}

// deleteClaims deletes claims and does not wait.
func (b *remoteSetup) deleteClaims(t *testing.T, prefix string, count int) {
	t.Helper()
	for _, name := range names(prefix, count) {
		if err := b.home.Client.CoreV1().PersistentVolumeClaims(b.home.Name).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// waitVolumeEvent waits for an event of a PersistentVolume.
func (b *remoteSetup) waitVolumeEvent(volume, reason, word string) {
	b.home.Eventually("an event about volume "+volume, func(ctx context.Context) (string, error) {
		events, err := b.home.Client.CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{
			FieldSelector: "involvedObject.name=" + volume,
		})
		if err != nil {
			return "", err
		}
		var messages []string
		for _, event := range events.Items {
			if event.Reason == reason && strings.Contains(event.Message, word) {
				return "", nil
			}
			messages = append(messages, event.Reason+": "+event.Message)
		}
		return "events: " + strings.Join(messages, " | "), nil
	})
}

// waitTwinMissing waits until a condition and an event of a claim report that it has no twin.
func (b *remoteSetup) waitTwinMissing(name string) {
	b.home.Eventually("claim "+name+" has the condition TwinReady=False", func(ctx context.Context) (string, error) {
		claim, err := b.home.Client.CoreV1().PersistentVolumeClaims(b.home.Name).Get(ctx, name, metav1.GetOptions{})
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
	b.home.Eventually("claim "+name+" has an event about its twin", func(ctx context.Context) (string, error) {
		events, err := b.home.Client.CoreV1().Events(b.home.Name).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + name})
		if err != nil {
			return "", err
		}
		for _, event := range events.Items {
			if event.Reason == "TwinTerminating" || event.Reason == "TwinVanished" {
				return "", nil
			}
		}
		return fmt.Sprintf("%d other events", len(events.Items)), nil
	})
}
