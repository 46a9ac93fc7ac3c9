package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/storage"
)

// side is one of the clusters, and the namespace of the demo's pods in it.
type side struct {
	cluster   *clusters.Cluster
	client    kubernetes.Interface
	namespace string
}

func newSide(lab *clusters.Lab, cluster, namespace string) (side, error) {
	found, err := lab.Cluster(cluster)
	if err != nil {
		return side{}, err
	}
	client, err := found.Client()
	return side{cluster: found, client: client, namespace: namespace}, err
}

// page is one pod of the StatefulSet with its claim, and the cluster with its containers and its
// data.
type page struct {
	pod, claim string
	at         side
	// user is the last known pod of the home cluster.
	user   *corev1.Pod
	volume *corev1.PersistentVolume
	twin   *corev1.PersistentVolumeClaim
	real   *corev1.PersistentVolume
}

func newPage(ordinal int) *page {
	pod := fmt.Sprintf("%s-%d", diary, ordinal)
	return &page{pod: pod, claim: "pages-" + pod}
}

// showVolume shows the volume from the claim to the data.
func (s *story) showVolume(ctx context.Context, p *page) error {
	claim, err := s.home.client.CoreV1().PersistentVolumeClaims(homeNamespace).Get(ctx, p.claim, metav1.GetOptions{})
	if err != nil {
		return err
	}
	isNew := p.volume == nil
	p.volume, err = s.home.client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if p.volume.Spec.CSI == nil {
		return fmt.Errorf("the volume %s is of no CSI driver", p.volume.Name)
	}
	says := p.volume.Spec.CSI.VolumeAttributes
	namespace, name := says["storage.liqo.io/twin-namespace"], says["storage.liqo.io/twin-name"]
	p.twin, err = p.at.client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("look for the twin of %s in cluster %s: %w", p.claim, p.at.cluster.Name(), err)
	}
	p.real, err = p.at.client.CoreV1().PersistentVolumes().Get(ctx, p.twin.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	within := ""
	if isNew { // they are whole seconds
		within = fmt.Sprintf(" within %s", p.volume.CreationTimestamp.Sub(claim.CreationTimestamp.Time)+time.Second)
	}
	line("claim", "%s/%s of class %s: %s to %s%s", claim.Namespace, claim.Name, *claim.Spec.StorageClassName,
		claim.Status.Phase, p.volume.Name, within)
	line("twin", "%s/%s of class %s in cluster %s: %s", p.twin.Namespace, p.twin.Name, *p.twin.Spec.StorageClassName,
		p.at.cluster.Name(), p.twin.Status.Phase)
	line("real volume", "%s, of %s", p.real.Name, realSource(p.real))
	line("gravity", "%s", gravity(p.volume))
	return nil
}

// showContainer shows where the pod runs, according to containerd there.
func (s *story) showContainer(ctx context.Context, p *page) error {
	running, err := p.at.client.CoreV1().Pods(p.at.namespace).Get(ctx, p.pod, metav1.GetOptions{})
	if err != nil {
		return err
	}
	node, err := p.at.cluster.Node(running.Spec.NodeName)
	if err != nil {
		return err
	}
	if len(running.Status.ContainerStatuses) == 0 {
		return fmt.Errorf("pod %s/%s of cluster %s has no container", running.Namespace, running.Name, p.at.cluster.Name())
	}
	container := strings.TrimPrefix(running.Status.ContainerStatuses[0].ContainerID, "containerd://")
	tasks, err := node.Command(ctx, s.lab.Binaries().Path("ctr"), "--namespace", "k8s.io", "tasks", "list").Output()
	if err != nil {
		return fmt.Errorf("ask containerd of node %s: %w", node.Name, err)
	}
	for task := range strings.Lines(string(tasks)) {
		if fields := strings.Fields(task); len(fields) == 3 && fields[0] == container {
			line("runs", "in cluster %s as pod %s/%s (%s) on node %s: container %.12s is %s, process %s",
				p.at.cluster.Name(), running.Namespace, running.Name, short(running.UID), node.Name, container, fields[2], fields[1])
			return nil
		}
	}
	return fmt.Errorf("containerd of node %s does not know container %s of pod %s", node.Name, container, p.pod)
}

func (s *story) showMount(ctx context.Context, p *page) error {
	mount, err := s.inPod(ctx, p, "grep ' /pages ' /proc/mounts")
	if err != nil {
		return err
	}
	line("mount", "%s", mount)
	return nil
}

// showDiary shows what all pods have written, and checks the number of lines.
func (s *story) showDiary(ctx context.Context, p *page, lines int) error {
	pages, err := s.inPod(ctx, p, fmt.Sprintf("test $(wc -l </pages/diary) = %d && cat /pages/diary", lines))
	if err != nil {
		return err
	}
	for page := range strings.Lines(pages) {
		line("diary", "%s", strings.TrimSpace(page))
	}
	return nil
}

// inPod runs a script in the pod with kubectl exec, until it succeeds. Pods in the other cluster
// are reached through the virtual node.
func (s *story) inPod(ctx context.Context, p *page, script string) (string, error) {
	kubectl := s.lab.Binaries().Path("kubectl")
	var out []byte
	err := s.until(ctx, fmt.Sprintf("%q in pod %s", script, p.pod), func(ctx context.Context) (err error) {
		cmd := exec.CommandContext(ctx, kubectl, "--kubeconfig", s.home.cluster.Kubeconfig(), "--namespace", homeNamespace,
			"exec", p.pod, "--", "sh", "-c", script)
		if out, err = cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	return strings.TrimSpace(string(out)), err
}

// showDeleted waits until nothing of the page exists in any cluster.
func (s *story) showDeleted(ctx context.Context, p *page) error {
	here, there := s.home.client.CoreV1(), p.at.client.CoreV1()
	err := s.awaitDeleted(ctx, []object{
		{"pod", fmt.Sprintf("%s/%s of cluster %s", p.at.namespace, p.pod, p.at.cluster.Name()), func(ctx context.Context) error {
			_, err := there.Pods(p.at.namespace).Get(ctx, p.pod, metav1.GetOptions{})
			return err
		}},
		{"claim", homeNamespace + "/" + p.claim, func(ctx context.Context) error {
			_, err := here.PersistentVolumeClaims(homeNamespace).Get(ctx, p.claim, metav1.GetOptions{})
			return err
		}},
		{"volume", p.volume.Name, func(ctx context.Context) error {
			_, err := here.PersistentVolumes().Get(ctx, p.volume.Name, metav1.GetOptions{})
			return err
		}},
	})
	if err != nil {
		return err
	}
	return s.showTwinDeleted(ctx, p)
}

// showTwinDeleted waits until the twin of the page and all its data are deleted.
func (s *story) showTwinDeleted(ctx context.Context, p *page) error {
	there := p.at.client.CoreV1()
	err := s.awaitDeleted(ctx, []object{
		{"twin", p.twin.Namespace + "/" + p.twin.Name, func(ctx context.Context) error {
			_, err := there.PersistentVolumeClaims(p.twin.Namespace).Get(ctx, p.twin.Name, metav1.GetOptions{})
			return err
		}},
		{"real volume", p.real.Name, func(ctx context.Context) error {
			_, err := there.PersistentVolumes().Get(ctx, p.real.Name, metav1.GetOptions{})
			return err
		}},
	})
	if err != nil {
		return err
	}
	return s.showDataDeleted(ctx, p)
}

// object is an object that must be deleted.
type object struct {
	subject, name string
	get           func(context.Context) error
}

func (s *story) awaitDeleted(ctx context.Context, objects []object) error {
	for _, left := range objects {
		what := left.subject + " " + left.name
		err := s.until(ctx, what+" to be deleted", func(ctx context.Context) error { return checkDeleted(left.get(ctx), what) })
		if err != nil {
			return err
		}
		line(left.subject, "%s is deleted", left.name)
	}
	return nil
}

// showDataDeleted checks the data of the cluster's real driver.
func (s *story) showDataDeleted(ctx context.Context, p *page) error {
	if p.real.Spec.CSI == nil || p.real.Spec.CSI.Driver != storage.Reference.Name {
		return nil // nothing of the lab keeps those bytes
	}
	id := p.real.Spec.CSI.VolumeHandle
	data := storage.BackendOf(p.at.cluster, storage.Reference).Data(id)
	err := s.until(ctx, "data of "+id+" to be deleted", func(context.Context) error {
		switch _, err := os.Stat(data); {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		}
		return fmt.Errorf("%s still exists", data)
	})
	if err != nil {
		return err
	}
	line("data", "%s is deleted from the storage of cluster %s", id, p.at.cluster.Name())
	return nil
}
