package offload

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
)

// setFabric changes spec.fabric of the RemoteCluster until the test ends. Only exclusive tests may use it.
func setFabric(t *testing.T, now, afterwards map[string]any) {
	t.Helper()
	all, err := dynamicClient(user.Cluster(t, "home"))
	if err != nil {
		t.Fatal(err)
	}
	set := func(ctx context.Context, fabric map[string]any) {
		patch, err := yaml.Marshal(map[string]any{"spec": map[string]any{"fabric": fabric}})
		if err == nil {
			patch, err = yaml.YAMLToJSON(patch)
		}
		if err == nil {
			_, err = all.Resource(clustersOf).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		}
		if err != nil {
			t.Errorf("change spec.fabric: %v", err)
		}
	}
	set(t.Context(), now)
	t.Cleanup(func() { set(user.CleanupContext(t), afterwards) })
}

// clientPod is a pod in its own namespace, which is not offloaded.
type clientPod struct{ *user.Namespace }

func newClientPod(t *testing.T, cluster string) clientPod {
	t.Helper()
	n := user.NewNamespace(t, user.Cluster(t, cluster))
	n.Pod("asker", "", withoutVolumes, withClusterDNS)
	n.WaitReady("asker")
	return clientPod{n}
}

// responses returns the distinct responses of a service to several requests.
func (a clientPod) responses(service string) ([]string, error) {
	const ask = `for i in 0 1 2 3 4 5 6 7 8 9 10 11; do timeout 5 wget -qO- http://%s 2>/dev/null || echo none; done | sort -u`
	out, err := a.Kubectl("exec", "asker", "--", "sh", "-c", fmt.Sprintf(ask, service))
	return strings.Fields(out), err
}

// waitResponses waits until a service has exactly these pods as its endpoints.
func (a clientPod) waitResponses(service string, want []string) {
	a.Eventually(fmt.Sprintf("requests to %s to be answered by %q", service, want), func(context.Context) (string, error) {
		got, err := a.responses(service)
		if !slices.Equal(got, want) {
			return fmt.Sprintf("in cluster %s the responses are from %q", a.Cluster.Name(), got), err
		}
		return "", err
	})
}

func withoutVolumes(pod *corev1.Pod) {
	pod.Spec.Volumes, pod.Spec.Containers[0].VolumeMounts = nil, nil
}

func withClusterDNS(pod *corev1.Pod) { pod.Spec.DNSPolicy = corev1.DNSClusterFirst }

// web serves the name of the pod.
func web(pod *corev1.Pod) {
	withoutVolumes(pod)
	pod.Labels = map[string]string{"app": "web"}
	pod.Spec.Containers[0].Command = []string{"sh", "-c", "mkdir /www && hostname > /www/index.html && exec httpd -f -p 8080 -h /www"}
}

// The Service of a namespace is in both clusters, whichever of them the strategy allows for its
// pods. If the networks are routed its endpoints are all pods, otherwise those of its own cluster.
func TestServiceIsReachableFromBothClusters(t *testing.T) {
	prepare(t)
	clients := map[string]clientPod{"home": newClientPod(t, "home"), "remote": newClientPod(t, "remote")}
	type exposed struct {
		service string
		pods    map[string][]string
	}
	var all []exposed
	var tenants []tenant
	for _, strategy := range []struct {
		name string
		pods map[string][]string
	}{
		{"LocalAndRemote", map[string][]string{"home": {"here"}, "remote": {"there"}}},
		{"Local", map[string][]string{"home": {"one", "two"}}},
		{"Remote", map[string][]string{"remote": {"one", "two"}}},
	} {
		n := tenant{user.NewNamespace(t, user.Cluster(t, "home")), t}
		user.ExistingNamespace(t, user.Cluster(t, "remote"), n.Name)
		n.offload("--namespace-mapping-strategy", "EnforceSameName", "--pod-offloading-strategy", strategy.name)
		n.waitPolicies(placement{strategy: strategy.name})
		tenants = append(tenants, n)
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "web"},
			Ports:    []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
		}}
		if _, err := n.Client.CoreV1().Services(n.Name).Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		for where, pods := range strategy.pods {
			for _, pod := range pods {
				n.Pod(pod, "", web, func(pod *corev1.Pod) {
					if strategy.name == "LocalAndRemote" {
						pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: map[string]string{"home": "home-1", "remote": node}[where]}
					}
				})
			}
		}
		for where, pods := range strategy.pods {
			for _, pod := range pods {
				if on := n.WaitReady(pod).Spec.NodeName; (on == node) != (where == "remote") {
					t.Errorf("with %s the pod %s runs on %s", strategy.name, pod, on)
				}
			}
		}
		all = append(all, exposed{"web." + n.Name + ".svc.cluster.local", strategy.pods})
	}
	everywhere := func(of exposed) []string {
		return slices.Sorted(slices.Values(slices.Concat(of.pods["home"], of.pods["remote"])))
	}
	for _, one := range all {
		for _, clientPod := range clients {
			clientPod.waitResponses(one.service, everywhere(one))
		}
	}

	setFabric(t, map[string]any{"network": map[string]any{"mode": "Isolated", "podCIDRs": nil}},
		map[string]any{"network": driver.Routed(user.Cluster(t, "remote"))})
	for _, one := range all {
		for where, clientPod := range clients {
			want := one.pods[where]
			if len(want) == 0 {
				want = []string{"none"}
			}
			clientPod.waitResponses(one.service, want)
		}
	}
	for i, one := range all {
		const event = "to which there are no routes"
		if len(one.pods["remote"]) > 0 {
			tenants[i].WaitEvent("web", event, name)
		} else {
			tenants[i].WantNoEvent("web", event)
		}
	}
	for _, n := range tenants {
		// Delete in parallel.
		if out, err := n.Kubectl("delete", "namespace", n.Name, "--wait=false"); err != nil {
			t.Error(err, out)
		}
	}
}
