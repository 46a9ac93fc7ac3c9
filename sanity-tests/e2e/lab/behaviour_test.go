package lab_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/faults"
	"storage.liqo.io/sanity-tests/machine"
)

// Properties of a lab on which tests rely.
func TestBehaviour(t *testing.T) {
	requireNoLab(t)
	ctx := within(t, 20*time.Minute)
	t.Cleanup(func() { down(t) })
	lab := up(t, ctx, clusters.Options{})
	home, remote := cluster(t, lab, "home"), cluster(t, lab, "remote")

	t.Run("pods reach the API from every node", func(t *testing.T) { podsReachTheAPI(t, ctx, home) })
	t.Run("pods find services by name", func(t *testing.T) { podsFindServices(t, ctx, home) })
	t.Run("pods of two clusters reach each other", func(t *testing.T) { podsReachEachOther(t, ctx, home, remote) })
	t.Run("audit log names the user agent", func(t *testing.T) { auditLogHasUserAgents(t, ctx, home) })
	t.Run("a node may not change another", func(t *testing.T) { nodesAreRestricted(t, ctx, home) })
	t.Run("kubelets refuse unauthenticated requests", func(t *testing.T) { kubeletsRefuseUnauthenticated(t, ctx, home) })
	t.Run("faults between the clusters", func(t *testing.T) { faultsTakeEffect(t, ctx, lab, home, remote) })
	t.Run("partition", func(t *testing.T) { partitionTakesEffect(t, ctx, lab, home, remote) })
	t.Run("components restart", func(t *testing.T) { componentsRestart(t, ctx, home) })
	t.Run("a start repairs the lab", func(t *testing.T) { startRepairsLab(t, ctx, home) })
}

func cluster(t *testing.T, lab *clusters.Lab, name string) *clusters.Cluster {
	t.Helper()
	found, err := lab.Cluster(name)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func client(t *testing.T, cluster *clusters.Cluster) kubernetes.Interface {
	t.Helper()
	made, err := cluster.Client()
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// podsReachTheAPI requests the API's version from a pod on each node, with the pod's token and CA.
// The response is in the pod's log, which kubelet serves.
func podsReachTheAPI(t *testing.T, ctx context.Context, home *clusters.Cluster) {
	for _, node := range home.Nodes() {
		pod := runPod(t, ctx, home, node.Name, `echo | nc -w 20 "$KUBERNETES_SERVICE_HOST" 443 && echo reached`)
		waitReached(t, ctx, home, pod)
	}
}

// waitReached waits until the pod's log has the response.
func waitReached(t *testing.T, ctx context.Context, cluster *clusters.Cluster, pod *corev1.Pod) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	err := machine.Until(ctx, "the pod's log", func() error {
		log, err := client(t, cluster).CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{}).DoRaw(ctx)
		if err == nil && !bytes.Contains(log, []byte("reached")) {
			err = fmt.Errorf("pod on %s: %q", pod.Spec.NodeName, log)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// serve is a server on port 8080 that responds with the name of its pod.
const serve = "mkdir /www && hostname > /www/index.html && exec httpd -f -p 8080 -h /www"

// podsFindServices creates a server and a client on each node. The clients send requests to a
// service by its address until both servers have responded, and to each server by its name in a
// headless service.
func podsFindServices(t *testing.T, ctx context.Context, home *clusters.Cluster) {
	services := client(t, home).CoreV1().Services(metav1.NamespaceDefault)
	labels := map[string]string{"app": "web"}
	for name, spec := range map[string]corev1.ServiceSpec{
		"web":  {Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}}},
		"each": {Ports: []corev1.ServicePort{{Port: 8080}}, ClusterIP: corev1.ClusterIPNone},
	} {
		spec.Selector = labels
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
		if _, err := services.Create(ctx, service, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	ask := "until [ $(for i in 0 1 2 3 4 5 6 7; do timeout 5 wget -qO- http://web; done | sort -u | wc -l) = 2 ]; do :; done\n"
	for _, node := range home.Nodes() {
		runPod(t, ctx, home, node.Name, serve, func(pod *corev1.Pod) {
			pod.Labels = labels
			pod.Spec.Hostname, pod.Spec.Subdomain = "on-"+node.Name, "each"
		})
		ask += fmt.Sprintf("until [ \"$(timeout 5 wget -qO- http://on-%[1]s.each.default.svc.cluster.local:8080)\" = on-%[1]s ]; do :; done\n", node.Name)
	}
	for _, node := range home.Nodes() {
		pod := runPod(t, ctx, home, node.Name, ask+"echo reached", func(pod *corev1.Pod) { pod.Spec.DNSPolicy = corev1.DNSClusterFirst })
		waitReached(t, ctx, home, pod)
	}
}

// podsReachEachOther sends a request in each cluster to a pod of the other, by its address. The
// server sees the address of the client.
func podsReachEachOther(t *testing.T, ctx context.Context, home, remote *clusters.Cluster) {
	for _, pair := range [][2]*clusters.Cluster{{home, remote}, {remote, home}} {
		from, to := pair[0], pair[1]
		asked := runPod(t, ctx, to, to.Nodes()[0].Name,
			"mkdir -p /www/cgi-bin && printf '#!/bin/sh\\necho; echo from $REMOTE_ADDR\\n' > /www/cgi-bin/who && "+
				"chmod +x /www/cgi-bin/who && exec httpd -f -p 8080 -h /www")
		pod := runPod(t, ctx, from, from.Nodes()[0].Name, fmt.Sprintf(
			`until timeout 5 wget -qO- http://%s:8080/cgi-bin/who | grep -w "$(hostname -i)"; do :; done; echo reached`, asked.Status.PodIP))
		waitReached(t, ctx, from, pod)
	}
}

func auditLogHasUserAgents(t *testing.T, ctx context.Context, home *clusters.Cluster) {
	config, err := home.Config()
	if err != nil {
		t.Fatal(err)
	}
	config.UserAgent = "lab-audit-test"
	agent, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := agent.CoreV1().Namespaces().List(ctx, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile(home.AuditLog())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(log, []byte(`"userAgent":"lab-audit-test"`)) {
		t.Error("the audit log does not have the request")
	}
}

func nodesAreRestricted(t *testing.T, ctx context.Context, home *clusters.Cluster) {
	config, err := clientcmd.BuildConfigFromFlags("", home.Nodes()[0].KubeletRoot()+"/kubeconfig")
	if err != nil {
		t.Fatal(err)
	}
	admin, err := home.Config()
	if err != nil {
		t.Fatal(err)
	}
	config.Host = admin.Host // the kubelet's own is inside the lab
	kubelet, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	label := []byte(`{"metadata":{"labels":{"lab":"test"}}}`)
	patch := func(node string) error {
		_, err := kubelet.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, label, metav1.PatchOptions{})
		return err
	}
	if err := patch(home.Nodes()[0].Name); err != nil {
		t.Errorf("a kubelet cannot label its own node: %v", err)
	}
	if err := patch(home.Nodes()[1].Name); !apierrors.IsForbidden(err) {
		t.Errorf("a kubelet that labels another node gets: %v", err)
	}
}

func kubeletsRefuseUnauthenticated(t *testing.T, ctx context.Context, home *clusters.Cluster) {
	node := home.Nodes()[0]
	authority, err := os.ReadFile(node.KubeletRoot() + "/pki/ca.crt")
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	stranger := http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots},
		DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			err = node.Namespace().InNetwork(func() error {
				conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
				return err
			})
			return conn, err
		},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+node.IP+":10250/pods", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := stranger.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusUnauthorized {
		body, _ := io.ReadAll(answer.Body)
		t.Errorf("an unauthenticated client gets %s: %.200s", answer.Status, body)
	}
}

// requestThroughProxy requests the version of the remote API server from a node of the home cluster.
func requestThroughProxy(ctx context.Context, home, remote *clusters.Cluster) error {
	kubeconfig, err := os.Open(remote.ProxyKubeconfig())
	if err != nil {
		return err
	}
	defer kubeconfig.Close()
	cmd := home.Nodes()[1].Command(ctx, "sh", "-c",
		"cat > /run/via-proxy && exec /opt/lab/bin/kubectl --kubeconfig=/run/via-proxy get --raw=/version --request-timeout=3s")
	cmd.Stdin = kubeconfig
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// retryRequest repeats the request for up to a minute, and returns the duration of the attempt that
// succeeded: on a busy machine an attempt may time out.
func retryRequest(ctx context.Context, home, remote *clusters.Cluster) (took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err = machine.Until(ctx, "an answer through the proxy", func() error {
		start := time.Now()
		err := requestThroughProxy(ctx, home, remote)
		took = time.Since(start)
		return err
	})
	return took, err
}

func faultsTakeEffect(t *testing.T, ctx context.Context, lab *clusters.Lab, home, remote *clusters.Cluster) {
	set := func(setting faults.Setting) {
		t.Helper()
		if err := lab.Proxy().Set(ctx, setting); err != nil {
			t.Fatal(err)
		}
	}
	for _, mode := range []faults.Mode{faults.Hang, faults.HalfOpen, faults.Reset} {
		set(faults.Setting{Mode: mode})
		if err := requestThroughProxy(ctx, home, remote); err == nil {
			t.Errorf("%s: the remote cluster is reachable", mode)
		}
		set(faults.Setting{Mode: faults.Pass})
		if _, err := retryRequest(ctx, home, remote); err != nil {
			t.Errorf("after %s the remote cluster is unreachable: %v", mode, err)
		}
	}
	set(faults.Setting{Mode: faults.Delay, Up: 200 * time.Millisecond, Down: 200 * time.Millisecond})
	took, err := retryRequest(ctx, home, remote)
	if err != nil {
		t.Errorf("with a delay the remote cluster is unreachable: %v", err)
	}
	if took < 800*time.Millisecond { // TLS and the request: two round trips
		t.Errorf("with a delay of 400 ms per round trip a response took only %s", took)
	}
	set(faults.Setting{Mode: faults.Pass})
}

func partitionTakesEffect(t *testing.T, ctx context.Context, lab *clusters.Lab, home, remote *clusters.Cluster) {
	if err := lab.Partition(ctx, true); err != nil {
		t.Fatal(err)
	}
	if err := requestThroughProxy(ctx, home, remote); err == nil {
		t.Error("the remote cluster is reachable despite the partition")
	}
	if err := lab.Partition(ctx, false); err != nil {
		t.Fatal(err)
	}
	// Packets that were sent earlier may still have to fail.
	if _, err := retryRequest(ctx, home, remote); err != nil {
		t.Errorf("after the partition the remote cluster is unreachable: %v", err)
	}
}

func componentsRestart(t *testing.T, ctx context.Context, home *clusters.Cluster) {
	pod := runPod(t, ctx, home, "home-1", "sleep 100000")
	for _, component := range []string{"containerd@home-1", "kubelet@home-1", "etcd", "kube-apiserver", "kube-controller-manager", "coredns", "kube-proxy@home-1"} {
		if err := home.Restart(ctx, component); err != nil {
			t.Errorf("restart %s: %v", component, err)
		}
	}
	seen, err := client(t, home).CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if seen.Status.Phase != corev1.PodRunning || seen.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the pod did not survive: %+v", seen.Status)
	}
	if err := home.Kill(ctx, "kubelet@home-7"); err == nil || !strings.Contains(err.Error(), "kubelet@home-1") {
		t.Errorf("killing an unknown component returns %v", err)
	}
}

func startRepairsLab(t *testing.T, ctx context.Context, home *clusters.Cluster) {
	for _, component := range []string{"etcd", "kube-scheduler", "containerd@home-2"} {
		if err := home.Kill(ctx, component); err != nil {
			t.Fatal(err)
		}
	}
	up(t, ctx, clusters.Options{})
	for _, component := range home.Components() {
		if process, err := home.Process(component); err != nil || !process.Alive() {
			t.Errorf("%s still does not run", component)
		}
	}
}
