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

// waitingClaim is a reason for which a claim named data waits. Its state and words are a row of docs/troubleshooting.md.
type waitingClaim struct {
	state  string
	create func(t *testing.T) *pair
	// Words of an event of the claim and of doctor, and the reason of its condition; empty if there is none.
	event, doctor []string
	condition     string
}

// createClaimAndPod creates the claim data and its pod.
func createClaimAndPod(p *pair, class, size string, edits ...func(*corev1.Pod)) *pair {
	p.home.Claim("data", class, size)
	p.home.Pod("user", "data", edits...)
	return p
}

// newPairWithBadKubeconfig changes the kubeconfig before it creates the claim.
func newPairWithBadKubeconfig(t *testing.T, reason string, kubeconfig func(t *testing.T) []byte) *pair {
	t.Helper()
	p := newDedicatedPair(t, nil)
	p.putSecret(kubeconfig(t))
	p.declare(spec{"kubeconfigSecretRef": map[string]any{"name": p.cluster}})
	p.waitStatus("it cannot be used", func(s status) bool { return hasCondition(s, "Ready", metav1.ConditionFalse, reason) })
	p.waitCapacity("liqo-reference", func(bytes int64) bool { return bytes == 0 })
	return createClaimAndPod(p, "liqo-reference", "64Mi", p.onVirtualNode)
}

var waitingClaims = []waitingClaim{
	{
		state: "no pod uses it",
		create: func(t *testing.T) *pair {
			p := newPair(t)
			p.home.Claim("data", "liqo-reference", "64Mi")
			return p
		},
		event: []string{"WaitForFirstConsumer"},
	},
	{
		state: "no node takes its pod",
		create: func(t *testing.T) *pair {
			return createClaimAndPod(newPair(t), "liqo-reference", "64Mi", user.OnNode("absent"))
		},
		event:  []string{"waiting for pod user to be scheduled"},
		doctor: []string{"its pod user cannot be scheduled", "didn't match"},
	},
	{
		state: "the cluster has no class for it",
		create: func(t *testing.T) *pair {
			p := newPair(t)
			return createClaimAndPod(p, p.createVirtualClass("nothing", map[string]string{"realStorageClass": "absent"}), "64Mi", p.onVirtualNode)
		},
		event: []string{"NoRealClass", "spec.storageClasses of the RemoteCluster"}, condition: "NoRealClass",
		doctor: []string{"cannot have volumes in the cluster", "spec.storageClasses of the RemoteCluster"},
	},
	{
		state: "the cluster is unreachable",
		create: func(t *testing.T) *pair {
			return newPairWithBadKubeconfig(t, "Unreachable", func(t *testing.T) []byte { return kubeconfigWith(t, unusedPort(t)) })
		},
		event: []string{"ClusterUnreachable", "liqo-csi clusters"}, condition: "ClusterUnreachable",
		doctor: []string{"is unreachable"},
	},
	{
		state: "the cluster is refused",
		create: func(t *testing.T) *pair {
			return newPairWithBadKubeconfig(t, "Refused", func(t *testing.T) []byte { return kubeconfigWith(t, refusedKubeconfigs["proxy-url"]) })
		},
		event: []string{"ClusterRefused", "proxy-url"}, condition: "ClusterRefused",
		doctor: []string{"proxy-url"},
	},
	{
		state: "its namespace is not offloaded there",
		create: func(t *testing.T) *pair {
			p := newDedicatedPair(t, mappedNamespaces(map[string]any{"another": "another"}))
			return createClaimAndPod(p, "liqo-reference", "64Mi", p.onVirtualNode)
		},
		event:  []string{"ProvisioningFailed", "is not offloaded to the cluster"},
		doctor: []string{"is not offloaded to the cluster"},
	},
	{
		state: "its annotation names a class that is not allowed",
		create: func(t *testing.T) *pair {
			p := newPair(t)
			p.home.Claim("data", "liqo-reference", "64Mi", func(claim *corev1.PersistentVolumeClaim) {
				claim.Annotations = map[string]string{"storage.liqo.io/real-storage-class": "reference-ext4"}
			})
			p.home.Pod("user", "data", p.onVirtualNode)
			return p
		},
		event:  []string{"ProvisioningFailed", "reference-ext4", "allow-list"},
		doctor: []string{"allow-list"},
	},
	{
		state: "it asks for more than the cluster has",
		create: func(t *testing.T) *pair {
			p := newPair(t)
			p.waitCapacity("liqo-reference-local", func(bytes int64) bool { return bytes > 0 })
			return createClaimAndPod(p, "liqo-reference-local", "4Pi", p.onVirtualNode)
		},
		event:  []string{"waiting for pod user to be scheduled"},
		doctor: []string{"its pod user cannot be scheduled", "did not have enough free storage", "The largest volume"},
	},
	{
		state: "its quota there is used up",
		create: func(t *testing.T) *pair {
			p := newPair(t)
			p.remote.StorageQuota("small", "1Mi")
			class := p.createVirtualClass("limited", map[string]string{"realStorageClass": "reference"})
			p.waitCapacity(class, func(bytes int64) bool { return bytes > 0 })
			return createClaimAndPod(p, class, "64Mi", p.onVirtualNode)
		},
		event:  []string{"ProvisioningFailed", "exceeded quota: small"},
		doctor: []string{"exceeded quota: small"},
	},
	{
		state: "a claim of others has its name there",
		create: func(t *testing.T) *pair {
			p := newPair(t)
			p.remote.Claim("data", "reference", "64Mi")
			return createClaimAndPod(p, "liqo-reference", "64Mi", p.onVirtualNode)
		},
		event:  []string{"ProvisioningFailed", "not ours"},
		doctor: []string{"not ours"},
	},
}

// Each reason is in an event or a condition of the claim, and in the report of doctor.
func TestWaitingClaimsReportTheReason(t *testing.T) {
	t.Parallel()
	for _, one := range waitingClaims {
		t.Run(one.state, func(t *testing.T) {
			p := one.create(t)
			p.home.WaitEvent("data", one.event...)
			if one.condition != "" {
				p.waitCondition("data", corev1.ConditionFalse, one.condition)
			}
			var found string
			p.home.Eventually("doctor reports the reason", func(ctx context.Context) (missing string, err error) {
				found, err = p.doctorOnClaim(ctx, "data")
				if err != nil || (found == "") != (len(one.doctor) == 0) {
					return fmt.Sprintf("it prints %q", found), err
				}
				for _, word := range one.doctor {
					if !strings.Contains(found, word) {
						return fmt.Sprintf("it prints %q", found), nil
					}
				}
				return "", nil
			})
			t.Logf("%s\n  doctor: %s", p.statusText("data"), found)
		})
	}
}

// doctorOnClaim returns the finding of doctor about a claim, or "".
func (p *pair) doctorOnClaim(ctx context.Context, claim string) (string, error) {
	return p.doctorOn(ctx, "PersistentVolumeClaim "+p.home.Name+"/"+claim)
}

// doctorOn returns the finding of doctor about an object, or "".
func (p *pair) doctorOn(ctx context.Context, object string) (string, error) {
	// doctor exits with an error if it has any finding.
	text, failed := p.liqoCSI(ctx, "doctor", "--output", "json")
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

// statusText returns the last condition and the last event of a claim.
func (p *pair) statusText(claim string) string {
	p.t.Helper()
	condition, event := "none", "none"
	for _, one := range p.home.GetClaim(claim).Status.Conditions {
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
