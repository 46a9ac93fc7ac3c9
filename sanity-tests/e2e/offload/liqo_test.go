package offload

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/e2e/user"
)

// serveHostname runs a web server that responds with the name of its pod.
const serveHostname = "mkdir /www && hostname > /www/index.html && exec httpd -f -p %d -h /www"

// liqoSource is the folder with Liqo's own repository, which is downloaded before the tests.
var (
	liqoSource    string
	errLiqoSource error
)

// example is a manifest of Liqo's examples, as it is in Liqo's own repository.
func example(t *testing.T, name, file string) string {
	t.Helper()
	if errLiqoSource != nil {
		t.Fatal(errLiqoSource)
	}
	text, err := os.ReadFile(filepath.Join(liqoSource, "examples", name, "manifests", file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// https://docs.liqo.io/en/v1.2.0/examples/quick-start.html
func TestQuickStartOfLiqo(t *testing.T) {
	n := newTenant(t)
	importServer(t, "docker.io/library/nginx:latest", fmt.Sprintf(serveHostname, 80))
	n.offload()
	n.waitPolicies(placement{strategy: "LocalAndRemote"})
	n.Apply(example(t, "quick-start", "hello-world.yaml"))
	for pod, remote := range map[string]bool{"nginx-local": false, "nginx-remote": true} {
		if on := n.WaitReady(pod).Spec.NodeName; (on == node) != remote {
			t.Errorf("%s runs on %s", pod, on)
		}
	}
	service := "liqo-demo." + n.Name + ".svc.cluster.local"
	newClientPod(t, "home").waitResponses(service, []string{"nginx-local", "nginx-remote"})
}

// https://docs.liqo.io/en/v1.2.0/examples/offloading-with-policies.html
func TestOffloadingWithPoliciesOfLiqo(t *testing.T) {
	n := newTenant(t)
	importServer(t, "docker.io/library/nginx:latest", fmt.Sprintf(serveHostname, 80))
	importServer(t, "docker.io/nginxdemos/hello:latest", fmt.Sprintf(serveHostname, 80))
	n.offload("--namespace-mapping-strategy", "EnforceSameName", "--pod-offloading-strategy", "LocalAndRemote",
		"--selector", "topology.liqo.io/region=south")
	n.waitCondition("OffloadingRequired", "ClusterSelected")
	inSouth := term(requirement("topology.liqo.io/region", corev1.NodeSelectorOpIn, "south"))
	n.waitPolicies(placement{strategy: "LocalAndRemote", terms: []corev1.NodeSelectorTerm{inSouth}})
	n.Apply(example(t, "offloading-with-policies", "deploy.yaml"))
	south := n.onlyPod("app=app-south")
	if on := n.WaitReady(south).Spec.NodeName; on != node {
		t.Errorf("app-south runs on %s", on)
	}
	center := n.onlyPod("app=app-center")
	n.waitPod("app-center to be unschedulable", center, func(pod *corev1.Pod) string {
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodScheduled && condition.Reason == corev1.PodReasonUnschedulable {
				return ""
			}
		}
		return "it is on " + pod.Spec.NodeName
	})
	// "You can remove the conflicting node affinity from the app-center deployment."
	if out, err := n.Kubectl("patch", "deployment", "app-center", "--type=json",
		`--patch=[{"op": "remove", "path": "/spec/template/spec/affinity"}]`); err != nil {
		t.Fatal(err, out)
	}
	n.Eventually("app-center to run", func(ctx context.Context) (string, error) {
		deployment, err := n.Client.AppsV1().Deployments(n.Name).Get(ctx, "app-center", metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if deployment.Status.ReadyReplicas != 1 || deployment.Status.UpdatedReplicas != 1 {
			return fmt.Sprintf("%+v", deployment.Status), nil
		}
		return "", nil
	})
}

// https://docs.liqo.io/en/v1.2.0/examples/service-offloading.html: the pods stay at home, and their
// service is in the other cluster as well.
func TestServiceOffloadingOfLiqo(t *testing.T) {
	n := newTenant(t)
	importServer(t, "docker.io/liqo/flights-service:latest", "mkdir /www && echo flights > /www/index.html && exec httpd -f -p 7999 -h /www")
	n.offload("--namespace-mapping-strategy", "EnforceSameName", "--pod-offloading-strategy", "Local")
	n.waitPolicies(placement{strategy: "Local"})
	user.ExistingNamespace(t, user.Cluster(t, "remote"), n.Name)
	n.Apply(example(t, "service-offloading", "app.yaml"))
	// An image without a tag is always pulled, and the lab can pull none.
	if out, err := n.Kubectl("patch", "deployment", "flights-service", "--type=json",
		`--patch=[{"op": "add", "path": "/spec/template/spec/containers/0/imagePullPolicy", "value": "IfNotPresent"}]`); err != nil {
		t.Fatal(err, out)
	}
	n.Eventually("only pods that are not pulled for", func(ctx context.Context) (string, error) {
		deployment, err := n.Client.AppsV1().Deployments(n.Name).Get(ctx, "flights-service", metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		status := deployment.Status
		if status.ObservedGeneration < deployment.Generation || status.ReadyReplicas != 1 || status.UpdatedReplicas != 1 || status.Replicas != 1 {
			return fmt.Sprintf("%+v", status), nil
		}
		return "", nil
	})
	pod := n.onlyPod("run=flights-service")
	if on := n.WaitReady(pod).Spec.NodeName; on == node {
		t.Errorf("it runs on %s", on)
	}
	service := "flights-service." + n.Name + ".svc.cluster.local:7999"
	for _, cluster := range []string{"home", "remote"} {
		newClientPod(t, cluster).waitResponses(service, []string{"flights"})
	}
}
