package offload

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/images"
)

// database is a manifest for one cluster. Its members must run on different nodes; the home cluster
// has two, so one of the three members is in the other cluster.
const database = `
apiVersion: v1
kind: Service
metadata: {name: etcd}
spec:
  clusterIP: None
  publishNotReadyAddresses: true   # members find each other before they are ready
  selector: {app: etcd}
  ports:
    - {name: client, port: 2379}
    - {name: peer, port: 2380}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: etcd}
spec:
  serviceName: etcd
  replicas: 3
  podManagementPolicy: Parallel
  persistentVolumeClaimRetentionPolicy: {whenDeleted: Delete, whenScaled: Retain}
  selector: {matchLabels: {app: etcd}}
  template:
    metadata: {labels: {app: etcd}}
    spec:
      automountServiceAccountToken: false
      terminationGracePeriodSeconds: 10
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            - {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: etcd}}}
      containers:
        - name: etcd
          image: %[1]s
          imagePullPolicy: IfNotPresent
          env:
            - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
            - {name: DOMAIN, value: etcd.%[2]s.svc.cluster.local}
          command:
            - /etcd
            - --name=$(POD)
            - --data-dir=/data/etcd
            - --listen-peer-urls=http://0.0.0.0:2380
            - --listen-client-urls=http://0.0.0.0:2379
            - --initial-advertise-peer-urls=http://$(POD).$(DOMAIN):2380
            - --advertise-client-urls=http://$(POD).$(DOMAIN):2379
            - --initial-cluster=etcd-0=http://etcd-0.$(DOMAIN):2380,etcd-1=http://etcd-1.$(DOMAIN):2380,etcd-2=http://etcd-2.$(DOMAIN):2380
            - --heartbeat-interval=1000   # the machine is small and busy
            - --election-timeout=10000
          readinessProbe:
            exec: {command: [wget, -qO-, "http://127.0.0.1:2379/health"]}
            periodSeconds: 1
            timeoutSeconds: 10
          volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
    - metadata: {name: data}
      spec:
        storageClassName: liqo
        accessModes: [ReadWriteOnce]
        resources: {requests: {storage: 320Mi}}
`

var restarts = flag.Int("restarts", 2, "number of members that TestDatabaseIsReplicatedAcrossTwoClusters restarts, the one there first")

var databaseMembers = []string{"etcd-0", "etcd-1", "etcd-2"}

// importEtcd gives both clusters an image of etcd, the program that the lab's control planes run.
func importEtcd(t *testing.T) (image string) {
	t.Helper()
	program := user.Lab(t).Binaries().Path("etcd")
	content, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	created, err := images.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	// Another program must have another name: nodes have the old one.
	created.Name = fmt.Sprintf("docker.io/e2e/etcd:%x", sha256.Sum256(content))[:40]
	created.AddBinary(program, "/etcd")
	for _, cluster := range user.Lab(t).Clusters() {
		if err := cluster.Import(t.Context(), created); err != nil {
			t.Fatal(err)
		}
	}
	return created.Name
}

// writer writes the keys 1, 2, 3 ... through the members in turn, each after the previous key was confirmed.
type writer struct {
	*user.Namespace
	mutex     sync.Mutex
	confirmed int
	// by counts the confirmed keys by member.
	by    map[string]int
	ended chan struct{}
}

func startWriter(t *testing.T, n *user.Namespace) *writer {
	t.Helper()
	n.Pod("writer", "", withoutVolumes, withClusterDNS, user.OnNode("home-1"))
	n.WaitReady("writer")
	script := `number=1 turn=0
		while [ ! -e /tmp/stop ]; do
			key=$(printf %s $number | base64) member=etcd-$((turn % 3)) turn=$((turn + 1))
			timeout 10 wget -qO /dev/null --post-data "{\"key\":\"$key\",\"value\":\"$key\"}" http://$member.etcd:2379/v3/kv/put &&
				echo $number $member && number=$((number + 1))
		done 2>/dev/null`
	cmd := exec.CommandContext(t.Context(), n.Cluster.Kubectl(), "exec", "--namespace", n.Name, "writer", "--", "sh", "-c", script)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	w := &writer{Namespace: n, by: map[string]int{}, ended: make(chan struct{})}
	go func() {
		defer close(w.ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			number, member, _ := strings.Cut(lines.Text(), " ")
			w.mutex.Lock()
			w.confirmed, _ = strconv.Atoi(number)
			w.by[member]++
			w.mutex.Unlock()
		}
		_ = cmd.Wait()
	}()
	return w
}

func (w *writer) progress() (confirmed int, by map[string]int) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	by = map[string]int{}
	for member, count := range w.by {
		by[member] = count
	}
	return w.confirmed, by
}

// waitThroughAll waits until every member has confirmed some more keys.
func (w *writer) waitThroughAll(what string) {
	_, before := w.progress()
	w.Eventually("every member to confirm writes "+what, func(context.Context) (string, error) {
		_, by := w.progress()
		for _, member := range databaseMembers {
			if by[member] < before[member]+5 {
				return fmt.Sprintf("%s has confirmed %d, before it was %d", member, by[member], before[member]), nil
			}
		}
		return "", nil
	})
}

// stop stops the writer and returns how many keys were confirmed.
func (w *writer) stop() int {
	w.Exec("writer", "touch /tmp/stop")
	w.Eventually("the writer to end", func(context.Context) (string, error) {
		select {
		case <-w.ended:
			return "", nil
		default:
			confirmed, _ := w.progress()
			return fmt.Sprintf("%d writes are confirmed", confirmed), nil
		}
	})
	confirmed, _ := w.progress()
	return confirmed
}

// keys returns the keys in a member's local data.
func (w *writer) keys(ctx context.Context, member string) ([]int, error) {
	const everything = `{"key":"AA==","range_end":"AA==","keys_only":true,"serializable":true}`
	out, err := w.Kubectl("exec", "writer", "--", "timeout", "10", "wget", "-qO-", "--post-data", everything, "http://"+member+".etcd:2379/v3/kv/range")
	if err != nil {
		return nil, err
	}
	var answer struct{ Kvs []struct{ Key []byte } }
	if err := json.Unmarshal([]byte(out), &answer); err != nil {
		return nil, fmt.Errorf("%s answers %s: %w", member, out, err)
	}
	var keys []int
	for _, kv := range answer.Kvs {
		number, err := strconv.Atoi(string(kv.Key))
		if err != nil {
			return nil, err
		}
		keys = append(keys, number)
	}
	slices.Sort(keys)
	return keys, nil
}

// missing returns the confirmed keys that a member does not have.
func missing(confirmed int, keys []int) (lost []int) {
	for number := 1; number <= confirmed; number++ {
		if _, found := slices.BinarySearch(keys, number); !found {
			lost = append(lost, number)
		}
	}
	return lost
}

// A database has members in two clusters, each with its own volume. They find each other by the
// names of a headless service. It accepts writes while a remote and a home member are lost and come
// back with their data; no confirmed key is lost, and every member has all of them.
func TestDatabaseIsReplicatedAcrossTwoClusters(t *testing.T) {
	// The members need enough CPU to keep their quorum.
	n := newExclusiveTenant(t)
	n.offload("--namespace-mapping-strategy", "EnforceSameName")
	remote := user.ExistingNamespace(t, user.Cluster(t, "remote"), n.Name)
	n.waitPolicies(placement{strategy: "LocalAndRemote"})
	n.Apply(fmt.Sprintf(database, importEtcd(t), n.Name))
	where := map[string]string{}
	for _, member := range databaseMembers {
		where[n.WaitReady(member).Spec.NodeName] = member
	}
	if len(where) != 3 || where[node] == "" {
		t.Fatalf("the members are not on three nodes, one of them the other cluster: %v", where)
	}
	t.Logf("the members run on %v", where)
	w := startWriter(t, n.Namespace)
	w.waitThroughAll("at first")

	for _, member := range []string{where[node], where["home-1"]}[:*restarts] {
		before := n.pod(member)
		volume := n.WaitBound("data-" + member).Name
		n.Exec(member, "echo kept > /data/mark && sync")
		n.DeletePod(member)
		after := n.WaitReady(member)
		if after.UID == before.UID || after.Spec.NodeName != before.Spec.NodeName || n.WaitBound("data-"+member).Name != volume {
			t.Errorf("%s was on %s and is on %s, its volume was %s", member, before.Spec.NodeName, after.Spec.NodeName, volume)
		}
		if mark := n.Exec(member, "cat /data/mark"); mark != "kept" {
			user.Violated(t, "after its restart %s has %q", member, mark)
		}
		w.waitThroughAll("after " + member + " was deleted")
	}
	if _, err := remote.Client.CoreV1().PersistentVolumeClaims(remote.Name).Get(t.Context(), "data-"+where[node], metav1.GetOptions{}); err != nil {
		t.Errorf("the remote member has no volume in the remote cluster: %v", err)
	}

	confirmed := w.stop()
	for _, member := range databaseMembers {
		n.Eventually(member+" to have every confirmed write", func(ctx context.Context) (string, error) {
			keys, err := w.keys(ctx, member)
			if lost := missing(confirmed, keys); len(lost) > 0 {
				return fmt.Sprintf("of %d keys it lacks %v", confirmed, lost), err
			}
			return "", err
		})
	}
	_, by := w.progress()
	t.Logf("%d writes were confirmed: %v", confirmed, by)
}
