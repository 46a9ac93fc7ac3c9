package driver

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/nodes"
)

// etcd runs a database of one member on the pod's volume, with the program that the
// lab's control planes run.
func etcd(pod *corev1.Pod) {
	const programs = "/programs"
	directory := corev1.HostPathDirectory
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "programs", VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: nodes.ProgramsDir, Type: &directory},
	}})
	container := &pod.Spec.Containers[0]
	container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: "programs", MountPath: programs, ReadOnly: true})
	container.Command = []string{filepath.Join(programs, "etcd"), "--data-dir=" + filepath.Join(user.DataPath, "etcd")}
	container.ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, TimeoutSeconds: 10, ProbeHandler: corev1.ProbeHandler{
		Exec: &corev1.ExecAction{Command: []string{"wget", "-qO-", "http://127.0.0.1:2379/health"}},
	}}
}

// ask makes a call of etcd's JSON gateway, from within the pod.
func ask(n *user.Namespace, pod, call, request string) string {
	return n.Exec(pod, fmt.Sprintf("wget -qO- --post-data '%s' http://127.0.0.1:2379/v3/kv/%s", request, call))
}

// writeKeys writes the keys 1, 2, 3… one after the other until the pod ends. The number of
// the last one that the database has confirmed is in a file that is not on the volume.
const writeKeys = `(
	number=1
	while key=$(printf %s $number | base64) &&
		wget -qO- --post-data "{\"key\":\"$key\",\"value\":\"$key\"}" http://127.0.0.1:2379/v3/kv/put
	do echo $number > /tmp/draft && mv /tmp/draft /tmp/confirmed && number=$((number + 1))
	done) > /dev/null 2>&1 < /dev/null &`

func confirmed(t *testing.T, n *user.Namespace, pod string) int {
	t.Helper()
	number, err := strconv.Atoi(n.Exec(pod, "cat /tmp/confirmed 2>/dev/null || echo 0"))
	if err != nil {
		t.Fatal(err)
	}
	return number
}

// keysOf is how many keys a database has and which is the latest.
func keysOf(t *testing.T, n *user.Namespace, pod string) (count, latest int) {
	t.Helper()
	everything := base64.StdEncoding.EncodeToString([]byte{0})
	var answer struct {
		Count int `json:",string"`
		Kvs   []struct{ Key []byte }
	}
	told := ask(n, pod, "range", fmt.Sprintf(
		`{"key":%q,"range_end":%q,"sort_target":"CREATE","sort_order":"DESCEND","limit":1,"keys_only":true}`, everything, everything))
	if err := json.Unmarshal([]byte(told), &answer); err != nil || len(answer.Kvs) != 1 {
		t.Fatalf("the database answers %s, %v", told, err)
	}
	latest, err := strconv.Atoi(string(answer.Kvs[0].Key))
	if err != nil {
		t.Fatal(err)
	}
	return answer.Count, latest
}

// A database whose volume is copied while it writes starts on the copy, and has all that it
// had confirmed before.
func TestDatabaseIsCopiedWhileItWrites(t *testing.T) {
	n := home(t)
	const class = "liqo-reference-attach"
	n.Claim("database", class, "320Mi")
	n.Pod("database", "database", etcd)
	n.WaitReady("database")
	n.Exec("database", writeKeys)
	n.Eventually("the database confirms keys", func(context.Context) (string, error) {
		return missingUnless(confirmed(t, n, "database") >= 20, "fewer than 20"), nil
	})

	before := map[string]int{"restored": confirmed(t, n, "database")}
	n.Snapshot("backup", "database", snapshotClass)
	before["cloned"] = confirmed(t, n, "database")
	n.Claim("restored", class, "320Mi", user.From("VolumeSnapshot", "backup"))
	n.Claim("cloned", class, "320Mi", user.From("PersistentVolumeClaim", "database"))
	for _, copied := range []string{"restored", "cloned"} {
		n.Pod(copied, copied, etcd)
	}
	for _, copied := range []string{"restored", "cloned"} {
		n.WaitReady(copied)
		count, latest := keysOf(t, n, copied)
		if count < before[copied] || count != latest {
			t.Errorf("the %s database has %d keys up to %d; %d were confirmed before it was copied", copied, count, latest, before[copied])
		}
		t.Logf("%s: %d keys, %d confirmed before the copy", copied, count, before[copied])
	}
	if now := confirmed(t, n, "database"); now <= before["cloned"] {
		t.Errorf("the database stopped writing at %d", now)
	}
}

func missingUnless(condition bool, what string) string {
	if condition {
		return ""
	}
	return what
}
