package clusters

import (
	"net"
	"strconv"
	"strings"
	"testing"
)

func TestInvalidOptionsAreRejected(t *testing.T) {
	for want, specs := range map[string][]ClusterSpec{
		"cluster name":            {{Name: "Home", Nodes: 1}},
		"two clusters":            {{Name: "a", Nodes: 1}, {Name: "a", Nodes: 1}},
		"0 nodes":                 {{Name: "a"}},
		"31 nodes":                {{Name: "a", Nodes: 31}},
		"3 quick nodes of 2":      {{Name: "a", Nodes: 2, QuickNodes: 3}},
		"70000 is not a port":     {{Name: "a", Nodes: 1, Port: 70000}},
		"9 clusters are too many": make([]ClusterSpec, 9),
	} {
		options := Options{Clusters: specs}
		if err := options.complete(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestDefaultClustersAreHomeAndRemote(t *testing.T) {
	var options Options
	if err := options.complete(); err != nil || len(options.Clusters) != 2 || options.Clusters[0].Name != "home" {
		t.Errorf("%+v, %v", options, err)
	}
}

func TestPortInUseIsReported(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	port := listener.Addr().(*net.TCPAddr).Port
	_, err = hostPorts([]ClusterSpec{{Name: "first"}, {Name: "second", Port: port}})
	if err == nil || !strings.Contains(err.Error(), "second: port "+strconv.Itoa(port)+" of 127.0.0.1 is taken") {
		t.Errorf("got %v", err)
	}
}

func TestFreePortsAreDistinct(t *testing.T) {
	seen := map[int]bool{}
	ports, err := hostPorts(make([]ClusterSpec, 200))
	if err != nil {
		t.Fatal(err)
	}
	for _, port := range ports {
		if seen[port] {
			t.Fatalf("port %d twice", port)
		}
		seen[port] = true
	}
}

func TestAddressesAreDistinct(t *testing.T) {
	var known record
	for _, name := range []string{"a", "b", "c"} {
		known.Clusters = append(known.Clusters, ClusterSpec{Name: name, Nodes: maxNodes})
		known.Ports = append(known.Ports, 1)
	}
	owner := map[string]string{}
	claim := func(address, name string) {
		if other := owner[address]; other != "" {
			t.Errorf("%s belongs to %s and to %s", address, other, name)
		}
		owner[address] = name
	}
	for _, cluster := range newLab(known).clusters {
		claim(cluster.switchIP(), cluster.Name()+" switch")
		claim(cluster.controlPlaneIP(), cluster.Name()+" control plane")
		claim(cluster.proxyIP(), cluster.Name()+" proxy")
		claim(cluster.linkIP(), cluster.Name()+" link")
		_, services, _ := net.ParseCIDR(cluster.serviceCIDR())
		for _, node := range cluster.Nodes() {
			claim(node.IP, node.Name)
			claim(node.PodCIDR, node.Name+" pods")
			first, pods, err := net.ParseCIDR(node.PodCIDR)
			if err != nil || services.Contains(first) || pods.Contains(net.ParseIP(node.IP)) {
				t.Errorf("pods of %s: %s, %v", node.Name, node.PodCIDR, err)
			}
		}
	}
}

func TestEveryComponentIsFoundByName(t *testing.T) {
	lab := newLab(record{Clusters: DefaultClusters(), Ports: []int{1, 2}})
	home, err := lab.Cluster("home")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range home.Components() {
		if part, err := home.component(name); err != nil || part.spec.Name != "home/"+name {
			t.Errorf("%s: %+v, %v", name, part.spec, err)
		}
	}
	for _, name := range []string{"dns", "kubelet@remote-1", "etcd@home-1"} {
		if _, err := home.component(name); err == nil || !strings.Contains(err.Error(), "kube-apiserver") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFirstNodesHaveQuickStatus(t *testing.T) {
	home := newLab(record{Clusters: []ClusterSpec{{Name: "home", Nodes: 2, QuickNodes: 1}}, Ports: []int{1}}).clusters[0].nodes
	if !home[0].QuickStatus || home[1].QuickStatus {
		t.Errorf("home-1: %t, home-2: %t", home[0].QuickStatus, home[1].QuickStatus)
	}
}

func TestLabFitsOnlyTheSameClusters(t *testing.T) {
	lab := newLab(record{Clusters: DefaultClusters(), Ports: []int{16443, 16444}})
	for _, wanted := range [][]ClusterSpec{
		DefaultClusters(),
		{{Name: "home", Nodes: 2, Port: 16443}, {Name: "remote", Nodes: 1}},
	} {
		if err := lab.fits(wanted); err != nil {
			t.Errorf("%v: %v", wanted, err)
		}
	}
	for _, wanted := range [][]ClusterSpec{
		{{Name: "home", Nodes: 2}},
		{{Name: "home", Nodes: 3}, {Name: "remote", Nodes: 1}},
		{{Name: "home", Nodes: 2, Port: 1}, {Name: "remote", Nodes: 1}},
		{{Name: "home", Nodes: 2, QuickNodes: 1}, {Name: "remote", Nodes: 1}},
	} {
		if err := lab.fits(wanted); err == nil || !strings.Contains(err.Error(), "lab-down") {
			t.Errorf("%v: %v", wanted, err)
		}
	}
}
