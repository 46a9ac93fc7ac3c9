package user

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"

	"storage.liqo.io/sanity-tests/nodes"
)

// RunEtcd makes a pod run etcd with one member on its volume, with the program of the lab's control planes.
func RunEtcd(pod *corev1.Pod) {
	const programs = "/programs"
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "programs", VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: nodes.ProgramsDir, Type: new(corev1.HostPathDirectory)},
	}})
	container := &pod.Spec.Containers[0]
	container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: "programs", MountPath: programs, ReadOnly: true})
	container.Command = []string{filepath.Join(programs, "etcd"), "--data-dir=" + filepath.Join(DataPath, "etcd")}
	container.ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, TimeoutSeconds: 10, ProbeHandler: corev1.ProbeHandler{
		Exec: &corev1.ExecAction{Command: []string{"wget", "-qO-", "http://127.0.0.1:2379/health"}},
	}}
}

// Load writes keys to etcd one by one until etcd ends.
type Load struct {
	namespace *Namespace
	confirmed atomic.Int64
	ended     chan struct{}
}

// LoadEtcd writes the keys after this number.
func (n *Namespace) LoadEtcd(pod string, after int) *Load {
	n.t.Helper()
	script := fmt.Sprintf(`number=%d
		while number=$((number + 1)) && key=$(printf %%s $number | base64) &&
			wget -qO /dev/null --post-data "{\"key\":\"$key\",\"value\":\"$key\"}" http://127.0.0.1:2379/v3/kv/put
		do echo $number; done 2>/dev/null`, after)
	// Until the pod is deleted, or the test ends.
	cmd := exec.CommandContext(n.t.Context(), n.Cluster.Kubectl(), "exec", "--namespace", n.Name, pod, "--", "sh", "-c", script)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		n.t.Fatal(err)
	}
	load := &Load{namespace: n, ended: make(chan struct{})}
	load.confirmed.Store(int64(after))
	go func() {
		defer close(load.ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if number, err := strconv.ParseInt(lines.Text(), 10, 64); err == nil {
				load.confirmed.Store(number)
			}
		}
		_ = cmd.Wait() // it fails when its pod is deleted
	}()
	return load
}

// Confirmed returns the last key that etcd has confirmed.
func (l *Load) Confirmed() int { return int(l.confirmed.Load()) }

// WaitEnd waits until etcd has ended, and returns the last confirmed key.
func (l *Load) WaitEnd() int {
	n := l.namespace
	n.t.Helper()
	n.Eventually("the load to end with etcd", func(context.Context) (string, error) {
		select {
		case <-l.ended:
			return "", nil
		default:
			return fmt.Sprintf("it has confirmed %d", l.Confirmed()), nil
		}
	})
	return l.Confirmed()
}

// EtcdKeys returns the number of keys in etcd, and the last one.
func (n *Namespace) EtcdKeys(pod string) (count, latest int) {
	n.t.Helper()
	all := base64.StdEncoding.EncodeToString([]byte{0})
	request := fmt.Sprintf(`{"key":%q,"range_end":%q,"sort_target":"CREATE","sort_order":"DESCEND","limit":1,"keys_only":true}`, all, all)
	out := n.Exec(pod, fmt.Sprintf("wget -qO- --post-data '%s' http://127.0.0.1:2379/v3/kv/range", request))
	var response struct {
		Count int `json:",string"`
		Kvs   []struct{ Key []byte }
	}
	if err := json.Unmarshal([]byte(out), &response); err != nil || len(response.Kvs) != 1 {
		n.t.Fatalf("etcd returns %s, %v", out, err)
	}
	latest, err := strconv.Atoi(string(response.Kvs[0].Key))
	if err != nil {
		n.t.Fatal(err)
	}
	return response.Count, latest
}
