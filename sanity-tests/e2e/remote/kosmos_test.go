package remote

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/fabric"
	"storage.liqo.io/sanity-tests/images"
	"storage.liqo.io/sanity-tests/storage"
)

// theirs is the example of Kosmos' documentation of storage across clusters. Only
// the image is ours, and what it runs.
const theirs = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: nginx-pvc
  namespace: test-new
spec:
  accessModes:
    - ReadWriteOnce
  resources:
    requests:
      storage: 1Gi
  storageClassName: openebs-hostpath
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: nginx-new
  namespace: test-new
spec:
  selector:
    matchLabels:
      app: nginx
  replicas: 1
  template:
    metadata:
      labels:
        app: nginx
      deletionGracePeriodSeconds: 30
    spec:
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms:
              - matchExpressions:
                  - key: kubernetes.io/hostname
                    operator: In
                    values:
                      - kosmos-cluster38
      tolerations:
        - key: "kosmos.io/node"
          operator: "Equal"
          value: "true"
          effect: "NoSchedule"
      containers:
        - name: nginx
          image: ` + images.BusyboxName + `
          command: [sleep, "2147483647"]
          ports:
            - containerPort: 80
          volumeMounts:
            - name: data
              mountPath: /data
      volumes:
        - name: data
          persistentVolumeClaim:
            claimName: "nginx-pvc"
`

// The class has the name it has there, and the scheduler is Kubernetes' own.
func TestKosmosExampleRunsAsItIs(t *testing.T) {
	t.Parallel()
	prepare(t)
	const class, cluster = "openebs-hostpath", "cluster38"
	remote := user.NewNamespaceNamed(t, user.Cluster(t, "remote"), "test-new")
	p := &pair{t: t, cluster: cluster, remote: remote}
	t.Cleanup(p.wantNoTwins)
	wait := storagev1.VolumeBindingWaitForFirstConsumer
	remote.Class(&storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: storage.Reference.Name, VolumeBindingMode: &wait,
	})
	options := fabric.Kosmos(cluster)
	options.NoNamespaces = true
	p.node = options.Node
	start(t, options)
	t.Cleanup(func() { fabricObjects(t, "home", "kosmos", "remove") })
	fabricObjects(t, "home", "kosmos", "join", "--cluster", cluster, "--remote-kubeconfig", user.Cluster(t, "remote").ProxyKubeconfig())

	p.home = user.NewNamespaceNamed(t, user.Cluster(t, "home"), "test-new")
	p.home.Class(&storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: driver.CSIName, VolumeBindingMode: &wait,
		Parameters: map[string]string{"realStorageClass": class},
	})
	p.waitMarked()
	p.home.Apply(theirs)
	pod := p.waitDeployed("app=nginx")
	if pod.Spec.NodeName != p.node {
		t.Errorf("it runs on %s", pod.Spec.NodeName)
	}
	p.remote.WaitReady(pod.Name)
	found := p.follow("nginx-pvc")
	if *found.twin.Spec.StorageClassName != class || found.real.Spec.CSI.Driver != storage.Reference.Name {
		t.Errorf("the twin is of class %s", *found.twin.Spec.StorageClassName)
	}
	wantOurs(t, p, found)
	wantGravity(t, p, found.object)
	p.remote.Exec(pod.Name, "echo kept > /data/file")
	p.home.DeletePod(pod.Name)
	next := p.waitDeployed("app=nginx")
	p.remote.WaitReady(next.Name)
	if got := p.remote.Exec(next.Name, "cat /data/file"); got != "kept" {
		user.Violated(t, "the next pod reads %q", got)
	}
}

// waitDeployed waits until exactly one pod with the label is ready.
func (p *pair) waitDeployed(label string) (pod *corev1.Pod) {
	p.t.Helper()
	p.home.Eventually("a pod with "+label, func(ctx context.Context) (string, error) {
		pods, err := p.home.Client.CoreV1().Pods(p.home.Name).List(ctx, metav1.ListOptions{LabelSelector: label})
		if err != nil || len(pods.Items) == 1 {
			if err == nil {
				pod = &pods.Items[0]
			}
			return "", err
		}
		return fmt.Sprintf("there are %d", len(pods.Items)), nil
	})
	return p.home.WaitReady(pod.Name)
}
