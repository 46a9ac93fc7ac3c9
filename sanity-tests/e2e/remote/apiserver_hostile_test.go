package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"storage.liqo.io/sanity-tests/bench"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/machine"
	"storage.liqo.io/sanity-tests/pki"
)

// hostile is an API server that sends more than fits into memory. It has only the parts of the API that
// the driver uses.
type hostile struct {
	list, watch func(w http.ResponseWriter, r *http.Request)
}

func (h hostile) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.URL.Path == "/version":
		_, _ = io.WriteString(w, `{"major":"1","minor":"36","gitVersion":"v1.36.0","gitCommit":"","gitTreeState":"","buildDate":"","goVersion":"","compiler":"","platform":""}`)
	case strings.HasSuffix(r.URL.Path, "/selfsubjectaccessreviews"):
		var review map[string]any
		_ = json.NewDecoder(r.Body).Decode(&review)
		review["status"] = map[string]any{"allowed": true}
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(review)
	case r.URL.Query().Get("watch") != "":
		h.watch(w, r)
	default:
		h.list(w, r)
	}
}

// writeObject writes an object with padding in a label. It does not use encoding/json, because quoting
// megabytes would take too much CPU.
func writeObject(w io.Writer, number int, padding string) error {
	_, err := fmt.Fprintf(w, `{"metadata":{"name":"o-%d","namespace":"ns","uid":"u-%d","resourceVersion":"1","labels":{"padding":"`, number, number)
	for _, text := range []string{padding, `"}},"spec":{"drivers":[]},"provisioner":"x","storageClassName":"x"}`} {
		if err == nil {
			_, err = io.WriteString(w, text)
		}
	}
	return err
}

// writePage writes a list of count objects; next is its continue token.
func writePage(w io.Writer, first, count int, padding, next string) {
	_, err := fmt.Fprintf(w, `{"kind":"List","apiVersion":"v1","metadata":{"resourceVersion":"1","continue":%q},"items":[`, next)
	for i := 0; i < count && err == nil; i++ {
		if i > 0 {
			_, _ = io.WriteString(w, ",")
		}
		err = writeObject(w, first+i, padding)
	}
	_, _ = io.WriteString(w, "]}")
}

func emptyList(w http.ResponseWriter, _ *http.Request) { writePage(w, 0, 0, "", "") }

// emptyWatch sends no events.
func emptyWatch(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

var (
	mebibyte    = strings.Repeat("x", 1<<20)
	kibibytes64 = mebibyte[:64<<10]
	manyObjects = strings.Repeat(",{}", 1_000_000)
	longText    = strings.Repeat("no ", 4<<20)
)

var hostileServers = map[string]struct {
	server hostile
	// errors are accepted values of status.lastError.
	errors []string
}{
	// Which limit it exceeds first depends on its speed.
	"endless": {errors: []string{"sends too much", "could not be listed"}, server: hostile{watch: emptyWatch, list: func(w http.ResponseWriter, r *http.Request) {
		var first int
		_, _ = fmt.Sscan(r.URL.Query().Get("continue"), &first)
		writePage(w, first, 100, kibibytes64[:1000], fmt.Sprint(first+100))
	}}},
	"flood": {errors: []string{"sends too much"}, server: hostile{list: emptyList, watch: func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; ; i++ {
			_, err := io.WriteString(w, `{"type":"ADDED","object":`)
			if err == nil {
				err = writeObject(w, i, kibibytes64)
			}
			if err == nil {
				_, err = io.WriteString(w, "}\n")
			}
			if err != nil {
				return
			}
		}
	}}},
	"fat": {errors: []string{"could not be listed"}, server: hostile{watch: emptyWatch, list: func(w http.ResponseWriter, _ *http.Request) {
		writePage(w, 0, 100, mebibyte, "")
	}}},
	"many": {errors: []string{"could not be listed"}, server: hostile{watch: emptyWatch, list: func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"kind":"List","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[{}`+manyObjects+"]}")
	}}},
	"errors": {errors: []string{"could not be listed"}, server: hostile{watch: emptyWatch, list: func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, longText)
	}}},
}

// Clusters that send too much are not used, do not affect others, and no replica exceeds the memory limit of
// the chart. The test is serial because it takes both cores, and other tests would use memory of the replicas.
func TestHostileClustersDoNotAffectOthers(t *testing.T) {
	p := newSerialPair(t)
	home := user.Cluster(t, "home")
	for name, one := range hostileServers {
		declareHostile(t, p, p.remote.Name+"-"+name, one.server)
	}
	p.startPod("user", "data", "liqo-reference")

	clusters, err := remoteClusters(home)
	if err != nil {
		t.Fatal(err)
	}
	for name, one := range hostileServers {
		p.home.Eventually("hostile cluster "+name, func(ctx context.Context) (string, error) {
			found, err := clusters.Get(ctx, p.remote.Name+"-"+name, metav1.GetOptions{})
			if err != nil {
				return "", err
			}
			lastError, _, _ := unstructured.NestedString(found.Object, "status", "lastError")
			if !slices.ContainsFunc(one.errors, func(text string) bool { return strings.Contains(lastError, text) }) {
				return fmt.Sprintf("lastError is %q, not one of %q", lastError, one.errors), nil
			}
			if len(lastError) > 2048 {
				return "", fmt.Errorf("lastError has %d bytes", len(lastError))
			}
			return "", nil
		})
	}
	p.startPod("later", "later", "liqo-reference")
	wantMemoryWithinLimit(t, p)
}

// wantMemoryWithinLimit checks the peak memory of all replicas, because the lab does not enforce limits.
func wantMemoryWithinLimit(t *testing.T, p *pair) {
	t.Helper()
	const limit = 256 << 20 // controller.resources.limits.memory of the chart
	driver, err := bench.Find(t.Context(), p.home.Client)
	if err != nil {
		t.Fatal(err)
	}
	replicas, err := driver.Processes("liqo-csi controller")
	if err != nil {
		t.Fatal(err)
	}
	if len(replicas) == 0 {
		t.Error("no replica of the controller was found")
	}
	for _, replica := range replicas {
		// Pages of the program do not count, because the kernel can drop them. The debug build of the tests
		// has many more of them than the release.
		own := replica.Peak - replica.Mapped
		t.Logf("a replica had at most %d MiB, and %d MiB of its program", own>>20, replica.Mapped>>20)
		if own >= limit {
			t.Errorf("a replica had %d MiB", own>>20)
		}
	}
}

// declareHostile runs an API server at the address of the fault proxies, and declares it as RemoteCluster.
func declareHostile(t *testing.T, p *pair, name string, server http.Handler) {
	t.Helper()
	home := user.Cluster(t, "home")
	address, err := url.Parse(serverOf(t, p.remote.Cluster))
	if err != nil {
		t.Fatal(err)
	}
	certificates := pki.Dir(t.TempDir())
	authority, err := certificates.Authority("ca")
	if err == nil {
		err = authority.Issue(certificates, pki.Request{Name: "server", CommonName: "hostile", Hosts: []string{address.Hostname()}})
	}
	if err != nil {
		t.Fatal(err)
	}
	var listener net.Listener
	err = machine.Namespace{Name: home.Name()}.InNetwork(func() (err error) {
		listener, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort(address.Hostname(), "0"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	serving := &http.Server{Handler: server}
	go func() {
		err := serving.ServeTLS(listener, certificates.Cert("server"), certificates.Key("server"))
		if !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("hostile API server: %v", err)
		}
	}()
	t.Cleanup(func() { _ = serving.Close() })

	ca, err := os.ReadFile(certificates.Cert("ca"))
	if err != nil {
		t.Fatal(err)
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["hostile"] = &clientcmdapi.Cluster{Server: "https://" + listener.Addr().String(), CertificateAuthorityData: ca}
	config.AuthInfos["driver"] = &clientcmdapi.AuthInfo{Token: "none"}
	config.Contexts["hostile"] = &clientcmdapi.Context{Cluster: "hostile", AuthInfo: "driver"}
	config.CurrentContext = "hostile"
	kubeconfig, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := user.CleanupContext(t)
		if err := errors.Join(deleteRemoteCluster(ctx, home, name), deleteSecret(ctx, home, name)); err != nil {
			t.Error(err)
		}
	})
	if err := putSecret(t.Context(), home, name, kubeconfig); err != nil {
		t.Fatal(err)
	}
	if err := putRemoteCluster(t.Context(), home, name, spec{"kubeconfigSecretRef": map[string]any{"name": name}}); err != nil {
		t.Fatal(err)
	}
}
