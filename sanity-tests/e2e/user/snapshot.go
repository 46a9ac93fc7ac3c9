package user

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"

	"storage.liqo.io/sanity-tests/chart"
)

const snapshotAPI = "/apis/snapshot.storage.k8s.io/v1/"

// SnapshotObject has the fields of a VolumeSnapshot or VolumeSnapshotContent that tests read.
type SnapshotObject struct {
	Metadata struct {
		Name        string            `json:"name"`
		UID         string            `json:"uid"`
		Labels      map[string]string `json:"labels"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		DeletionPolicy string `json:"deletionPolicy"`
		Driver         string `json:"driver"`
	} `json:"spec"`
	Status struct {
		Content string `json:"boundVolumeSnapshotContentName"`
		Handle  string `json:"snapshotHandle"`
		Error   struct {
			Message string `json:"message"`
		} `json:"error"`
	} `json:"status"`
}

// Snapshot has all objects of a snapshot of the driver; absent ones are nil.
type Snapshot struct {
	Object, Content *SnapshotObject
	Twin            *SnapshotObject
	// Real is the content of the twin.
	Real *SnapshotObject
}

// CreateSnapshot creates a snapshot of a claim and does not wait for it.
func (n *Namespace) CreateSnapshot(name, claim, class string) {
	n.t.Helper()
	n.Apply(fmt.Sprintf(`
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: %s}
spec:
  volumeSnapshotClassName: %s
  source: {persistentVolumeClaimName: %s}
`, name, class, claim))
}

// GetSnapshot returns the current objects of a snapshot whose twin is in the same cluster.
func (n *Namespace) GetSnapshot(ctx context.Context, name string) (Snapshot, error) {
	return n.getSnapshot(ctx, name, n.Client, chart.StorageNamespace)
}

// GetRemoteSnapshot is GetSnapshot for one whose twin is in a namespace of another cluster.
func (n *Namespace) GetRemoteSnapshot(ctx context.Context, remote *Namespace, name string) (Snapshot, error) {
	return n.getSnapshot(ctx, name, remote.Client, remote.Name)
}

func (n *Namespace) getSnapshot(ctx context.Context, name string, twins kubernetes.Interface, namespace string) (s Snapshot, err error) {
	if s.Object, err = getSnapshotObject(ctx, n.Client, "namespaces/"+n.Name+"/volumesnapshots/"+name); s.Object == nil {
		return s, err
	}
	if s.Content, err = contentOf(ctx, n.Client, s.Object); err != nil {
		return s, err
	}
	path := "namespaces/" + namespace + "/volumesnapshots/snapshot-" + s.Object.Metadata.UID
	if s.Twin, err = getSnapshotObject(ctx, twins, path); s.Twin == nil {
		return s, err
	}
	s.Real, err = contentOf(ctx, twins, s.Twin)
	return s, err
}

// WantSnapshot returns all objects of a snapshot that is ready.
func (n *Namespace) WantSnapshot(name string) Snapshot {
	n.t.Helper()
	return n.complete(n.GetSnapshot(n.t.Context(), name))
}

func (n *Namespace) complete(found Snapshot, err error) Snapshot {
	n.t.Helper()
	if err != nil || found.Content == nil || found.Real == nil {
		n.t.Fatalf("objects of the snapshot: %+v, %v", found, err)
	}
	return found
}

// WantRemoteSnapshot is WantSnapshot for one whose twin is in a namespace of another cluster.
func (n *Namespace) WantRemoteSnapshot(remote *Namespace, name string) Snapshot {
	n.t.Helper()
	return n.complete(n.GetRemoteSnapshot(n.t.Context(), remote, name))
}

// WantImportedSnapshot is WantSnapshot for an imported one, whose twin's name is in the handle of
// its content.
func (n *Namespace) WantImportedSnapshot(name string) Snapshot {
	n.t.Helper()
	found, err := n.GetSnapshot(n.t.Context(), name)
	if err == nil && found.Content != nil {
		_, key, _ := strings.Cut(found.Content.Status.Handle, "::")
		path := "namespaces/" + chart.StorageNamespace + "/volumesnapshots/snapshot-" + key
		if found.Twin, err = getSnapshotObject(n.t.Context(), n.Client, path); found.Twin != nil {
			found.Real, err = contentOf(n.t.Context(), n.Client, found.Twin)
		}
	}
	return n.complete(found, err)
}

// WaitSnapshotError waits until a snapshot has an error with all of the words.
func (n *Namespace) WaitSnapshotError(name string, words ...string) {
	n.t.Helper()
	n.Eventually(fmt.Sprintf("snapshot %s has the error %q", name, words), func(ctx context.Context) (string, error) {
		found, err := n.GetSnapshot(ctx, name)
		if err != nil || found.Object == nil {
			return "it does not exist", err
		}
		if message := found.Object.Status.Error.Message; !mentionsAll(message, words) {
			return "its error: " + message, nil
		}
		return "", nil
	})
}

// DeleteSnapshot deletes a snapshot and does not wait.
func (n *Namespace) DeleteSnapshot(name string) {
	n.t.Helper()
	if _, err := n.Kubectl("delete", "volumesnapshot", name, "--wait=false"); err != nil {
		n.t.Fatal(err)
	}
}

// WaitSnapshotDeleted waits until all objects of a snapshot are deleted, in this namespace and in that of
// its twin.
func (n *Namespace) WaitSnapshotDeleted(s Snapshot, twins kubernetes.Interface, namespace string) {
	n.t.Helper()
	n.Eventually("nothing of snapshot "+s.Object.Metadata.Name+" is left", func(ctx context.Context) (string, error) {
		var left []string
		for _, one := range []struct {
			client kubernetes.Interface
			path   string
			object *SnapshotObject
		}{
			{n.Client, "namespaces/" + n.Name + "/volumesnapshots/", s.Object},
			{n.Client, "volumesnapshotcontents/", s.Content},
			{twins, "namespaces/" + namespace + "/volumesnapshots/", s.Twin},
			{twins, "volumesnapshotcontents/", s.Real},
		} {
			if one.object == nil {
				continue
			}
			found, err := getSnapshotObject(ctx, one.client, one.path+one.object.Metadata.Name)
			if err != nil {
				return "", err
			}
			if found != nil && found.Metadata.UID == one.object.Metadata.UID {
				left = append(left, one.path+one.object.Metadata.Name)
			}
		}
		return strings.Join(left, ", "), nil
	})
}

func contentOf(ctx context.Context, client kubernetes.Interface, snapshot *SnapshotObject) (*SnapshotObject, error) {
	if snapshot.Status.Content == "" {
		return nil, nil
	}
	return getSnapshotObject(ctx, client, "volumesnapshotcontents/"+snapshot.Status.Content)
}

// SnapshotContent returns a VolumeSnapshotContent, nil if there is none.
func SnapshotContent(ctx context.Context, client kubernetes.Interface, name string) (*SnapshotObject, error) {
	return getSnapshotObject(ctx, client, "volumesnapshotcontents/"+name)
}

// getSnapshotObject returns an object of the snapshot API, nil if there is none.
func getSnapshotObject(ctx context.Context, client kubernetes.Interface, path string) (*SnapshotObject, error) {
	raw, err := client.Discovery().RESTClient().Get().AbsPath(snapshotAPI + path).DoRaw(ctx)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var found SnapshotObject
	if err := json.Unmarshal(raw, &found); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return &found, nil
}
