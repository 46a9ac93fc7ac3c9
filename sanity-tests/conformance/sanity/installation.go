// Package sanity runs csi-sanity against the driver as it is installed in the lab: on the sockets
// of its controller and of a node plugin, with a real API server and real storage.
package sanity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/nodes"
)

// installation has the addresses of the running driver.
type installation struct {
	client     kubernetes.Interface
	node       *nodes.Node
	controller string
}

// install builds and installs the driver with a command of the module sanity-tests, which finds the
// sources from its own folder.
func install(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "go", "run", "./cmd/driver", "install")
	cmd.Dir = filepath.Join("..", "..")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	return cmd.Run()
}

// find finds the driver in the lab's first cluster. dir gets a link to the folder of the
// controller's socket, because the real path is longer than the address of a socket may be.
func find(ctx context.Context, dir string) (*installation, error) {
	lab, err := clusters.Load()
	if err != nil {
		return nil, err
	}
	if err := install(ctx); err != nil {
		return nil, fmt.Errorf("install the driver: %w", err)
	}
	home := lab.Clusters()[0]
	client, err := home.Client()
	if err != nil {
		return nil, err
	}
	controller, err := controllerPod(ctx, client)
	if err != nil {
		return nil, err
	}
	runsOn, err := home.Node(controller.Spec.NodeName)
	if err != nil {
		return nil, err
	}
	folder := runsOn.HostPath(filepath.Join(nodes.KubeletDir, "pods", string(controller.UID), "volumes/kubernetes.io~empty-dir/socket"))
	link := filepath.Join(dir, "controller")
	if err := os.Symlink(folder, link); err != nil {
		return nil, err
	}
	return &installation{client: client, node: home.Nodes()[0], controller: filepath.Join(link, "csi.sock")}, nil
}

func controllerPod(ctx context.Context, client kubernetes.Interface) (*corev1.Pod, error) {
	pods, err := client.CoreV1().Pods(chart.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/component=controller", FieldSelector: "status.phase=Running",
	})
	if err != nil {
		return nil, err
	}
	for _, pod := range pods.Items {
		if pod.DeletionTimestamp == nil {
			return &pod, nil
		}
	}
	return nil, errors.New("no pod of the controller runs")
}

// nodeSocket returns the host's path of the node plugin's socket.
func (i *installation) nodeSocket() string {
	return i.node.HostPath(filepath.Join(nodes.KubeletDir, "plugins", driver.CSIName, "csi.sock"))
}

// paths makes csi-sanity use paths of the node below kubelet's folder, where the node plugin
// mounts, and access them from the host.
func (i *installation) paths(config *sanity.TestConfig, name string) (cleanUp func()) {
	base := filepath.Join(nodes.KubeletDir, "plugins", "csi-sanity-"+name)
	config.TargetPath = filepath.Join(base, "targets")
	config.StagingPath = filepath.Join(base, "staging")
	create := func(path string) (string, error) { return path, os.MkdirAll(i.node.HostPath(path), 0o755) }
	remove := func(path string) error {
		err := os.Remove(i.node.HostPath(path))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	config.CreateTargetDir, config.CreateStagingDir = create, create
	config.RemoveTargetPath, config.RemoveStagingPath = remove, remove
	config.CheckPath = func(path string) (sanity.PathKind, error) { return kind(i.node.HostPath(path)) }
	// Only empty folders: anything else should be inspected.
	return func() { _ = os.Remove(i.node.HostPath(base)) }
}

func kind(path string) (sanity.PathKind, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return sanity.PathIsNotFound, nil
	case err != nil:
		return "", err
	case info.Mode().IsRegular():
		return sanity.PathIsFile, nil
	case info.IsDir():
		return sanity.PathIsDir, nil
	}
	return sanity.PathIsOther, nil
}

// leftovers returns twins and attachments of csi-sanity's volumes. No claim of a user refers to
// them.
func (i *installation) leftovers(ctx context.Context) ([]string, error) {
	twins, err := i.client.CoreV1().PersistentVolumeClaims(chart.StorageNamespace).List(ctx, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/managed-by=" + driver.CSIName,
	})
	if err != nil {
		return nil, err
	}
	var found []string
	volumes := map[string]bool{}
	for _, twin := range twins.Items {
		if twin.Annotations["storage.liqo.io/claim-name"] == "" {
			found = append(found, "twin "+twin.Name)
			volumes[twin.Spec.VolumeName] = true
		}
	}
	attachments, err := i.client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, attachment := range attachments.Items {
		if volume := attachment.Spec.Source.PersistentVolumeName; volume != nil && volumes[*volume] {
			found = append(found, fmt.Sprintf("attachment %s of %s", attachment.Name, *volume))
		}
	}
	snapshots, err := i.snapshots(ctx)
	return append(found, snapshots...), err
}

// snapshots returns the twins of csi-sanity's snapshots. No object of a user refers to them.
func (i *installation) snapshots(ctx context.Context) (found []string, err error) {
	path := "/apis/snapshot.storage.k8s.io/v1/namespaces/" + chart.StorageNamespace + "/volumesnapshots"
	raw, err := i.client.Discovery().RESTClient().Get().AbsPath(path).DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	var twins metav1.PartialObjectMetadataList
	if err := json.Unmarshal(raw, &twins); err != nil {
		return nil, fmt.Errorf("read the twins of snapshots: %w", err)
	}
	for _, twin := range twins.Items {
		if twin.Annotations["storage.liqo.io/snapshot-name"] == "" {
			found = append(found, "snapshot "+twin.Name)
		}
	}
	return found, nil
}
