package remote

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/e2e/user"
)

// waiting is a state in which a claim named data waits.
type waiting struct {
	state string
	make  func(t *testing.T) *pair
	// What users read: the words of an event of the claim, the reason of its condition, and the words of doctor.
	// Without words there is nothing to read.
	event, doctor []string
	condition     string
}

// claimed makes the claim of this class and size, and its pod.
func claimed(p *pair, class, size string, edits ...func(*corev1.Pod)) *pair {
	p.home.Claim("data", class, size)
	p.home.Pod("user", "data", edits...)
	return p
}

// spoiltCluster is one whose kubeconfig was spoilt before there was a claim.
func spoiltCluster(t *testing.T, reason string, spoil func(t *testing.T) []byte) *pair {
	t.Helper()
	p := apart(t, nil)
	p.putSecret(spoil(t))
	p.declare(spec{"kubeconfigSecretRef": map[string]any{"name": p.cluster}})
	p.waitStatus("it cannot be used", func(s status) bool { return is(s, "Ready", metav1.ConditionFalse, reason) })
	p.waitCapacity("liqo-reference", func(room int64) bool { return room == 0 })
	return claimed(p, "liqo-reference", "64Mi", p.there)
}

var waitingClaims = []waiting{
	{
		state: "no pod uses it",
		make: func(t *testing.T) *pair {
			p := offloaded(t)
			p.home.Claim("data", "liqo-reference", "64Mi")
			return p
		},
		event: []string{"WaitForFirstConsumer"},
	},
	{
		state: "no node takes its pod",
		make: func(t *testing.T) *pair {
			return claimed(offloaded(t), "liqo-reference", "64Mi", user.OnNode("absent"))
		},
		event:  []string{"waiting for pod user to be scheduled"},
		doctor: []string{"its pod user cannot be scheduled", "didn't match"},
	},
	{
		state: "the cluster has no class for it",
		make: func(t *testing.T) *pair {
			p := offloaded(t)
			return claimed(p, p.virtualClass("nothing", map[string]string{"realStorageClass": "absent"}), "64Mi", p.there)
		},
		event: []string{"NoRealClass", "spec.storageClasses of the RemoteCluster"}, condition: "NoRealClass",
		doctor: []string{"cannot have volumes in the cluster", "spec.storageClasses of the RemoteCluster"},
	},
	{
		state: "the cluster is unreachable",
		make: func(t *testing.T) *pair {
			return spoiltCluster(t, "Unreachable", func(t *testing.T) []byte { return spoilt(t, nobodyListens(t)) })
		},
		event: []string{"ClusterUnreachable", "liqo-csi clusters"}, condition: "ClusterUnreachable",
		doctor: []string{"is unreachable"},
	},
	{
		state: "the cluster is refused",
		make: func(t *testing.T) *pair {
			return spoiltCluster(t, "Refused", func(t *testing.T) []byte { return spoilt(t, refused["proxy-url"]) })
		},
		event: []string{"ClusterRefused", "proxy-url"}, condition: "ClusterRefused",
		doctor: []string{"proxy-url"},
	},
	{
		state: "its namespace is not offloaded there",
		make: func(t *testing.T) *pair {
			p := apart(t, mapped(map[string]any{"another": "another"}))
			return claimed(p, "liqo-reference", "64Mi", p.there)
		},
		event:  []string{"ProvisioningFailed", "is not offloaded to the cluster"},
		doctor: []string{"is not offloaded to the cluster"},
	},
	{
		state: "its annotation names a class that is not allowed",
		make: func(t *testing.T) *pair {
			p := offloaded(t)
			p.home.Claim("data", "liqo-reference", "64Mi", func(claim *corev1.PersistentVolumeClaim) {
				claim.Annotations = map[string]string{"storage.liqo.io/real-storage-class": "reference-ext4"}
			})
			p.home.Pod("user", "data", p.there)
			return p
		},
		event:  []string{"ProvisioningFailed", "reference-ext4", "allow-list"},
		doctor: []string{"allow-list"},
	},
	{
		state: "it asks for more than the cluster has",
		make: func(t *testing.T) *pair {
			p := offloaded(t)
			p.waitCapacity("liqo-reference-local", func(room int64) bool { return room > 0 })
			return claimed(p, "liqo-reference-local", "4Pi", p.there)
		},
		event:  []string{"waiting for pod user to be scheduled"},
		doctor: []string{"its pod user cannot be scheduled", "did not have enough free storage", "The largest volume"},
	},
	{
		state: "its quota there is used up",
		make: func(t *testing.T) *pair {
			p := offloaded(t)
			p.remote.StorageQuota("nothing", "1Mi")
			class := p.virtualClass("limited", map[string]string{"realStorageClass": "reference"})
			p.waitCapacity(class, func(room int64) bool { return room > 0 })
			return claimed(p, class, "64Mi", p.there)
		},
		event:  []string{"ProvisioningFailed", "exceeded quota: nothing"},
		doctor: []string{"exceeded quota: nothing"},
	},
	{
		state: "a claim of others has its name there",
		make: func(t *testing.T) *pair {
			p := offloaded(t)
			p.remote.Claim("data", "reference", "64Mi")
			return claimed(p, "liqo-reference", "64Mi", p.there)
		},
		event:  []string{"ProvisioningFailed", "not ours"},
		doctor: []string{"not ours"},
	},
}

// TestClaimsSayWhyTheyWait puts side by side what users read of claims that wait: each has its reason where people
// look first, and in the report of doctor.
func TestClaimsSayWhyTheyWait(t *testing.T) {
	for _, one := range waitingClaims {
		t.Run(one.state, func(t *testing.T) {
			p := one.make(t)
			p.home.WaitEvent("data", one.event...)
			if one.condition != "" {
				p.waitCondition("data", corev1.ConditionFalse, one.condition)
			}
			var found string
			p.home.Eventually("doctor says why", func(ctx context.Context) (wrong string, err error) {
				found, err = p.doctorOf(ctx, "data")
				if err != nil || (found == "") != (len(one.doctor) == 0) {
					return fmt.Sprintf("it says %q", found), err
				}
				for _, word := range one.doctor {
					if !strings.Contains(found, word) {
						return fmt.Sprintf("it says %q", found), nil
					}
				}
				return "", nil
			})
			t.Logf("%s\n  doctor: %s", p.tells("data"), found)
		})
	}
}

// doctorOf is what doctor says of a claim, if anything.
func (p *pair) doctorOf(ctx context.Context, claim string) (string, error) {
	return p.doctorOn(ctx, "PersistentVolumeClaim "+p.home.Name+"/"+claim)
}

// doctorOn is what doctor says of an object, if anything.
func (p *pair) doctorOn(ctx context.Context, object string) (string, error) {
	// Its exit code says that it found something, whatever that is.
	text, failed := p.look(ctx, "doctor", "--output", "json")
	var report struct {
		Findings []struct{ Object, Problem, Fix string }
	}
	if err := json.Unmarshal([]byte(text), &report); err != nil {
		return "", fmt.Errorf("%w: %s: %w", err, text, failed)
	}
	of := slices.IndexFunc(report.Findings, func(one struct{ Object, Problem, Fix string }) bool { return one.Object == object })
	if of < 0 {
		return "", nil
	}
	return report.Findings[of].Problem + " " + report.Findings[of].Fix, nil
}

// tells is what a claim says in its condition and its last event.
func (p *pair) tells(claim string) string {
	p.t.Helper()
	condition, event := "none", "none"
	found, err := p.home.Client.CoreV1().PersistentVolumeClaims(p.home.Name).Get(p.t.Context(), claim, metav1.GetOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	for _, one := range found.Status.Conditions {
		condition = fmt.Sprintf("%s %s %s: %s", one.Type, one.Status, one.Reason, one.Message)
	}
	events, err := p.home.Client.CoreV1().Events(p.home.Name).List(p.t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + claim})
	if err != nil {
		p.t.Fatal(err)
	}
	for _, one := range events.Items {
		event = one.Reason + ": " + one.Message
	}
	return fmt.Sprintf("condition: %s\n  event: %s", condition, event)
}
