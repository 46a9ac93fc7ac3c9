// Package move tests the parts of a move between two clusters: source and target as pods, and the relay that connects
// them.
package move

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
)

func TestMain(m *testing.M) { user.Main(m) }

const (
	// moveID is the UID of no VolumeMove.
	moveID = "3a1d2f9e-5a44-4b0e-8a43-0c0f7b6f2d11"
	// The movers listen on the loopback of their pods, which only forwarded ports reach.
	lanesAddress, controlAddress = "127.0.0.1:7401", "127.0.0.1:7402"
	lanesPort                    = 7401
	// helper is a container with the volume and the network of the mover.
	helper = "helper"
)

// built is the driver, which has the commands relay and mover.
var built struct{ program, image string }

// prepare builds the driver, and imports its image into the clusters.
func prepare(t *testing.T) {
	t.Helper()
	for _, cluster := range user.Lab(t).Clusters() {
		if err := driver.ImportImage(t.Context(), cluster); err != nil {
			t.Fatal(err)
		}
	}
	image, err := driver.Image(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	built.image = image.Name
	if built.program, err = driver.Compile(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// startMover starts the source or target of a move in a pod with an emptyDir.
func startMover(n *user.Namespace, t *testing.T, name, node, credentials string, flags ...string) {
	t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string][]byte{}}
	for _, file := range []string{"authority.pem", "certificate.pem", "key.pem"} {
		content, err := os.ReadFile(filepath.Join(credentials, name, file))
		if err != nil {
			t.Fatal(err)
		}
		secret.Data[file] = content
	}
	if _, err := n.Client.CoreV1().Secrets(n.Name).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.Pod(name, "", func(pod *corev1.Pod) {
		pod.Annotations = map[string]string{"kubectl.kubernetes.io/default-container": helper}
		pod.Spec.NodeName = node
		pod.Spec.RestartPolicy = corev1.RestartPolicyNever
		pod.Spec.Volumes = []corev1.Volume{
			{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			{Name: "credentials", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name}}},
		}
		sidecar := pod.Spec.Containers[0]
		sidecar.Name = helper
		arguments := []string{"mover", name, "--move", moveID, "--root", user.DataPath, "--credentials", "/credentials", "--listen", lanesAddress}
		mover := corev1.Container{
			Name:            "mover",
			Image:           built.image,
			ImagePullPolicy: corev1.PullIfNotPresent,
			Args:            append(arguments, flags...),
			VolumeMounts: []corev1.VolumeMount{
				{Name: "data", MountPath: user.DataPath},
				{Name: "credentials", MountPath: "/credentials", ReadOnly: true},
			},
		}
		pod.Spec.Containers = []corev1.Container{sidecar, mover}
	})
}
