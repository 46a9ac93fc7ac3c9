package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/machine"
	"storage.liqo.io/sanity-tests/pki"
)

const (
	homeLabel      = "fabric.storage.liqo.io/home"
	namespaceLabel = "fabric.storage.liqo.io/home-namespace"
	homePod        = "fabric.storage.liqo.io/home-pod"
	homePodUID     = "fabric.storage.liqo.io/home-pod-uid"

	// The driver accepts pages of a list up to 4 MiB, and ends calls after ten seconds.
	hostilePage  = 4<<20 - 64<<10
	hostileDelay = 8 * time.Second
	// hostileStatus is the status of one pod. Of a larger one the fabric copies only a part.
	hostileStatus = 60 << 10
)

// front is the API server of one of several clusters that are all the lab's remote cluster: each has another uid, and
// shows only the fabric's namespaces of its own home namespaces. It can become hostile.
type front struct {
	uid    string
	server *http.Server
	proxy  *httputil.ReverseProxy
	// namespaces at home.
	namespaces []string

	mu sync.Mutex
	// watching is cancelled to end all watches; pods are what it shows once it is hostile, nil before.
	watching context.Context
	end      context.CancelFunc
	pods     []map[string]any
	// answers and sent count what it has invented.
	answers, sent atomic.Int64
}

// startFront starts a front in the network of the home cluster, and returns a kubeconfig for it with the identity of
// another one.
func startFront(ctx context.Context, home, remote *clusters.Cluster, number int, namespaces []string, kubeconfig []byte) (*front, []byte, error) {
	config, err := remote.Config()
	if err != nil {
		return nil, nil, err
	}
	upstream, err := url.Parse(config.Host)
	if err != nil {
		return nil, nil, err
	}
	// Requests keep the token of the driver.
	transport, err := rest.TransportFor(rest.AnonymousClientConfig(config))
	if err != nil {
		return nil, nil, err
	}
	f := newFront(fmt.Sprintf("00000000-0000-4000-8000-%012d", number), namespaces, upstream, transport)
	changed, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return nil, nil, err
	}
	there := changed.Clusters[changed.Contexts[changed.CurrentContext].Cluster]
	address, err := url.Parse(there.Server)
	if err != nil {
		return nil, nil, err
	}
	listener, authority, err := f.listen(ctx, home, address.Hostname())
	if err != nil {
		return nil, nil, err
	}
	there.Server, there.CertificateAuthorityData = "https://"+listener, authority
	there.CertificateAuthority, there.TLSServerName = "", ""
	written, err := clientcmd.Write(*changed)
	return f, written, err
}

func newFront(uid string, namespaces []string, upstream *url.URL, transport http.RoundTripper) *front {
	f := &front{uid: uid, namespaces: namespaces}
	f.watching, f.end = context.WithCancel(context.Background())
	f.proxy = &httputil.ReverseProxy{
		Rewrite:        func(request *httputil.ProxyRequest) { request.SetURL(upstream); f.narrow(request.Out) },
		Transport:      transport,
		FlushInterval:  -1,
		ModifyResponse: f.replaceUID,
		ErrorLog:       log.New(io.Discard, "", 0), // watches that end
	}
	return f
}

// listen serves at this address of the home cluster, and returns it with its port and the certificate of its authority.
func (f *front) listen(ctx context.Context, home *clusters.Cluster, host string) (address string, authority []byte, err error) {
	folder, err := os.MkdirTemp("", "bench-front-")
	if err != nil {
		return "", nil, err
	}
	defer os.RemoveAll(folder)
	certificates := pki.Dir(folder)
	ca, err := certificates.Authority("ca")
	if err == nil {
		err = ca.Issue(certificates, pki.Request{Name: "server", CommonName: "front", Hosts: []string{host}})
	}
	if err != nil {
		return "", nil, err
	}
	if authority, err = os.ReadFile(certificates.Cert("ca")); err != nil {
		return "", nil, err
	}
	serving, err := tls.LoadX509KeyPair(certificates.Cert("server"), certificates.Key("server"))
	if err != nil {
		return "", nil, err
	}
	f.server = &http.Server{
		Handler: f, ErrorLog: log.New(io.Discard, "", 0),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{serving}},
	}
	var listener net.Listener
	err = machine.Namespace{Name: home.Name()}.InNetwork(func() (err error) {
		listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(host, "0"))
		return err
	})
	if err != nil {
		return "", nil, err
	}
	go func() { _ = f.server.ServeTLS(listener, "", "") }() // until it is closed
	return listener.Addr().String(), authority, nil
}

func (f *front) close(context.Context) error {
	f.end()
	return f.server.Close()
}

// narrow leaves out the namespaces of other clusters.
func (f *front) narrow(request *http.Request) {
	request.Header.Del("Accept-Encoding")
	query := request.URL.Query()
	selector := query.Get("labelSelector")
	if strings.HasSuffix(request.URL.Path, "/api/v1/namespaces") && strings.Contains(selector, homeLabel) {
		query.Set("labelSelector", selector+","+namespaceLabel+" in ("+strings.Join(f.namespaces, ",")+")")
		request.URL.RawQuery = query.Encode()
	}
}

// replaceUID replaces the uid of the namespace kube-system, which identifies a cluster.
func (f *front) replaceUID(response *http.Response) error {
	if !strings.HasSuffix(response.Request.URL.Path, "/api/v1/namespaces/kube-system") || response.StatusCode != http.StatusOK {
		return nil
	}
	var object map[string]any
	err := errors.Join(json.NewDecoder(response.Body).Decode(&object), response.Body.Close())
	if err != nil {
		return err
	}
	if metadata, ok := object["metadata"].(map[string]any); ok {
		metadata["uid"] = f.uid
	}
	text, err := json.Marshal(object)
	if err != nil {
		return err
	}
	response.Body, response.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	response.Header.Set("Content-Length", strconv.Itoa(len(text)))
	return nil
}

var podsOfNamespace = regexp.MustCompile(`^/api/v1/namespaces/[^/]+/pods$`)

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	watching, pods := f.watching, f.pods
	f.mu.Unlock()
	isWatch := r.URL.Query().Get("watch") != ""
	if isWatch {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(watching, cancel)()
		r = r.WithContext(ctx)
	}
	switch {
	case pods == nil:
		f.proxy.ServeHTTP(w, r)
	case r.Method == http.MethodGet && podsOfNamespace.MatchString(r.URL.Path) && isWatch:
		f.flood(w, r, pods)
	case r.Method == http.MethodGet && podsOfNamespace.MatchString(r.URL.Path):
		f.list(w, r, pods[0])
	default:
		if !isWatch {
			select {
			case <-r.Context().Done():
			case <-time.After(hostileDelay):
			}
		}
		f.proxy.ServeHTTP(w, r)
	}
}

// setHostile ends all watches. With pods, from then on lists of pods never end, and are of pods that do not exist; watches report
// changes of these pods without pause, with statuses that are as large as allowed; and every other answer takes almost as
// long as the driver waits. Without pods it is an ordinary cluster again.
func (f *front) setHostile(pods []map[string]any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pods = pods
	f.end()
	f.watching, f.end = context.WithCancel(context.Background())
}

// invented returns a pod that looks like one of the fabric's.
func invented(like map[string]any, number int64, version string) map[string]any {
	pod := map[string]any{"apiVersion": "v1", "kind": "Pod", "spec": like["spec"], "status": like["status"]}
	metadata := copied(like["metadata"])
	annotations := copied(metadata["annotations"])
	name := fmt.Sprintf("invented-%d", number)
	namespace, _ := metadata["namespace"].(string)
	annotations[homePod] = namespace + "/" + name
	annotations[homePodUID] = inventedUID(number)
	annotations["padding"] = strings.Repeat("x", 12<<10)
	metadata["name"], metadata["uid"], metadata["resourceVersion"] = name, inventedUID(number), version
	metadata["annotations"] = annotations
	delete(metadata, "managedFields")
	pod["metadata"] = metadata
	return pod
}

func inventedUID(number int64) string { return fmt.Sprintf("11111111-0000-4000-8000-%012d", number) }

func copied(from any) map[string]any {
	to := map[string]any{}
	if from, ok := from.(map[string]any); ok {
		for key, value := range from {
			to[key] = value
		}
	}
	return to
}

// list answers with the next page of a list that does not end.
func (f *front) list(w http.ResponseWriter, r *http.Request, like map[string]any) {
	first, _ := strconv.ParseInt(r.URL.Query().Get("continue"), 10, 64)
	limit, _ := strconv.ParseInt(r.URL.Query().Get("limit"), 10, 64)
	if limit == 0 {
		limit = 500
	}
	w.Header().Set("Content-Type", "application/json")
	var items bytes.Buffer
	number := first
	for ; number < first+limit && items.Len() < hostilePage-32<<10; number++ {
		if number > first {
			items.WriteByte(',')
		}
		text, err := json.Marshal(invented(like, number, "1"))
		if err != nil {
			return
		}
		items.Write(text)
	}
	sent, _ := fmt.Fprintf(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"1","continue":"%d"},"items":[%s]}`, number, items.Bytes())
	f.answers.Add(1)
	f.sent.Add(int64(sent))
}

// flood reports changes of its pods in turns, and of ever more invented ones, until the connection ends.
func (f *front) flood(w http.ResponseWriter, r *http.Request, pods []map[string]any) {
	w.Header().Set("Content-Type", "application/json")
	flush := http.NewResponseController(w)
	for number := int64(0); r.Context().Err() == nil; number++ {
		version := strconv.FormatInt(1_000_000_000+f.answers.Add(1), 10)
		object := invented(pods[0], number, version)
		if number%2 == 0 {
			like := pods[int(number/2)%len(pods)]
			metadata, status := copied(like["metadata"]), copied(like["status"])
			metadata["resourceVersion"], status["message"] = version, noise(hostileStatus)
			object = map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": like["spec"], "status": status}
		}
		text, err := json.Marshal(map[string]any{"type": "MODIFIED", "object": object})
		if err != nil {
			return
		}
		if _, err := w.Write(append(text, '\n')); err != nil {
			return
		}
		f.sent.Add(int64(len(text)))
		if flush.Flush() != nil {
			return
		}
	}
}

// noise is text that differs each time.
func noise(length int) string {
	part := make([]byte, 32)
	_, _ = rand.Read(part) // it never fails
	return strings.Repeat(hex.EncodeToString(part), length/64)
}
