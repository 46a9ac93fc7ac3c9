package offload

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"

	"storage.liqo.io/sanity-tests/e2e/user"
)

// outcome is what an API server makes of a new pod, or why it refuses it.
type outcome string

const (
	unchanged outcome = "unchanged"
	offloaded outcome = "offloaded"
	atHome    outcome = "at home"
)

// replicas are clients of the API servers of the home cluster.
type replicas []kubernetes.Interface

// startReplicas starts API servers until the home cluster has three.
func startReplicas(t *testing.T, n tenant) replicas {
	t.Helper()
	all := replicas{n.Client}
	for _, port := range []int{6444, 6445} {
		config, stop, err := n.Cluster.StartAPIServer(t.Context(), port)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, client)
	}
	return all
}

// create creates a pod as a dry run by one of the API servers. It tolerates all taints, so both strategies change it.
func (all replicas) create(ctx context.Context, n tenant, server int) (*corev1.Pod, error) {
	probe := newPod("probe", withTolerations(corev1.Toleration{Operator: corev1.TolerationOpExists}))
	return all[server].CoreV1().Pods(n.Name).Create(ctx, probe, dryRunCreate)
}

// outcome is what one of the API servers makes of a pod.
func (all replicas) outcome(ctx context.Context, n tenant, server int) (outcome, error) {
	pod, err := all.create(ctx, n, server)
	switch {
	case apierrors.IsForbidden(err) || apierrors.IsInvalid(err):
		return outcome("refused: " + err.Error()), nil
	case err != nil:
		return "", err
	case slices.Contains(pod.Spec.Tolerations, virtualNodeToleration):
		return offloaded, nil
	case pod.Spec.Affinity != nil && pod.Spec.Affinity.NodeAffinity != nil:
		return atHome, nil
	default:
		return unchanged, nil
	}
}

// waitAll makes a change, waits until each API server has the outcome, and logs after how long, and what it had before.
func (all replicas) waitAll(n tenant, wanted outcome, change func()) {
	n.t.Helper()
	type result struct {
		server int
		at     time.Time
		before []outcome
		err    error
	}
	ctx, cancel := context.WithTimeout(n.t.Context(), user.Timeout)
	defer cancel()
	results := make(chan result, len(all))
	for server := range all {
		go func() {
			found := result{server: server}
			for {
				var now outcome
				if now, found.err = all.outcome(ctx, n, server); found.err != nil || now == wanted {
					break
				}
				if !slices.Contains(found.before, now) {
					found.before = append(found.before, now)
				}
			}
			found.at = time.Now()
			results <- found
		}()
	}
	began := time.Now()
	change()
	n.t.Logf("the change took %v", time.Since(began).Round(time.Millisecond))
	for range all {
		found := <-results
		if found.err != nil {
			n.t.Fatalf("API server %d is not %s: %v; before that %v", found.server, wanted, found.err, found.before)
		}
		n.t.Logf("API server %d: %s after %v, before that %v", found.server, wanted, found.at.Sub(began).Round(time.Millisecond), found.before)
	}
}

// Each of three API servers observes policies, namespaces and NamespaceOffloadings by watches of its own. All of them apply
// a strategy and its change, and change a pod in the same way beside a policy of others.
func TestEachAPIServerAppliesTheStrategy(t *testing.T) {
	n := newExclusiveTenant(t)
	all := startReplicas(t, n)
	n.mutatePods(otherToleration)
	all.waitAll(n, offloaded, func() { n.offload() })
	for round := range 10 {
		wanted, strategy := atHome, "Local"
		if round%2 == 1 {
			wanted, strategy = offloaded, "LocalAndRemote"
		}
		all.waitAll(n, wanted, func() {
			if _, err := n.Kubectl("patch", "nso", "offloading", "--type=merge", "-p", fmt.Sprintf(`{"spec": {"podOffloadingStrategy": %q}}`, strategy)); err != nil {
				t.Fatal(err)
			}
		})
	}
	var specs []string
	for server := range all {
		n.Eventually(fmt.Sprintf("API server %d to apply both policies", server), func(ctx context.Context) (string, error) {
			pod, err := all.create(ctx, n, server)
			if err != nil {
				return "", err
			}
			keys := tolerated(pod)
			if !slices.Contains(keys, "other") || !slices.Contains(keys, taintKey) {
				return fmt.Sprint("the pod tolerates ", keys), nil
			}
			specs = append(specs, fmt.Sprint(keys, pod.Spec.Affinity))
			return "", nil
		})
	}
	for server, spec := range specs {
		if spec != specs[0] {
			t.Errorf("API server %d changes the pod to %s, the first to %s", server, spec, specs[0])
		}
	}
	n.unoffload()
}

func tolerated(pod *corev1.Pod) (keys []string) {
	for _, one := range pod.Spec.Tolerations {
		keys = append(keys, one.Key)
	}
	slices.Sort(keys)
	return keys
}

// otherToleration adds a toleration to a pod.
const otherToleration = `
          object.spec.?tolerations.orValue([]).exists(t, t.?key.orValue('') == 'other') ? [] : [JSONPatch{
          op: 'add', path: has(object.spec.tolerations) ? '/spec/tolerations/-' : '/spec/tolerations',
          value: has(object.spec.tolerations) ? dyn({'key': 'other', 'operator': 'Exists'}) : dyn([{'key': 'other', 'operator': 'Exists'}])}]`
