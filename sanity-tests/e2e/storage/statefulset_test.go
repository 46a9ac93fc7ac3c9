package storage

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/images"
	"storage.liqo.io/sanity-tests/storage"
)

// statefulSet has a volume of each kind of storage in each pod.
const statefulSet = `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 2
  podManagementPolicy: Parallel
  persistentVolumeClaimRetentionPolicy: {whenDeleted: Delete, whenScaled: Retain}
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      dnsPolicy: Default
      terminationGracePeriodSeconds: 0
      containers:
        - name: main
          image: %s
          imagePullPolicy: IfNotPresent
          command: [sleep, "2147483647"]
          volumeMounts:
            - {name: reference, mountPath: /reference}
            - {name: local-path, mountPath: /local-path}
            - {name: static-local, mountPath: /static-local}
  volumeClaimTemplates:
`

const claimTemplate = `
    - metadata: {name: %[1]s}
      spec:
        storageClassName: %[1]s
        accessModes: [ReadWriteOnce]
        resources: {requests: {storage: 64Mi}}
`

var classesOfSet = []string{"reference", "local-path", "static-local"}

// recycleStatic makes static volumes available again at the end of the test. Call it before home, so that the
// namespace is deleted first.
func recycleStatic(t *testing.T) {
	t.Helper()
	cluster := user.Cluster(t, "home")
	t.Cleanup(func() {
		if err := storage.RecycleStatic(context.Background(), cluster); err != nil {
			t.Error(err)
		}
	})
}

func TestStatefulSetKeepsItsDataWithEveryKindOfStorage(t *testing.T) {
	recycleStatic(t)
	n := home(t)
	set := fmt.Sprintf(statefulSet, images.BusyboxName)
	for _, class := range classesOfSet {
		set += fmt.Sprintf(claimTemplate, class)
	}
	n.Apply(set)
	pods := []string{"db-0", "db-1"}
	before := map[string]*corev1.Pod{}
	for _, pod := range pods {
		before[pod] = n.WaitReady(pod)
		for _, class := range classesOfSet {
			n.Exec(pod, fmt.Sprintf("echo %s of %s > /%s/file", class, pod, class))
		}
	}
	for _, pod := range pods {
		n.DeletePod(pod)
	}
	for _, pod := range pods {
		if after := n.WaitReady(pod); after.UID == before[pod].UID {
			t.Errorf("pod %s was not replaced", pod)
		}
		for _, class := range classesOfSet {
			if got, want := n.Exec(pod, fmt.Sprintf("cat /%s/file", class)), class+" of "+pod; got != want {
				user.Violated(t, "%s reads %q in its %s volume, wrote %q", pod, got, class, want)
			}
		}
	}
}

func TestStaticBlockVolume(t *testing.T) {
	recycleStatic(t)
	n := home(t)
	n.Claim("device", "static-local", "32Mi", user.Block)
	n.Pod("writer", "device", user.WithDevice)
	n.WaitReady("writer")
	n.Exec("writer", "echo kept | dd of=/data bs=512 count=1 conv=sync,fsync")
	n.DeletePod("writer")
	n.Pod("reader", "device", user.WithDevice)
	n.WaitReady("reader")
	if got := n.Exec("reader", "head -c 5 /data"); !strings.HasPrefix(got, "kept") {
		user.Violated(t, "read %q", got)
	}
}
