// Package move shows on the lab what the parts of a move do between real clusters: the
// programs at both ends as pods, and the relay that connects them. No command of the
// driver uses them yet; what uses them will be tested here too.
package move

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/images"
)

func TestMain(m *testing.M) { user.Main(m) }

const (
	moverPath = "/usr/local/bin/liqo-csi-mover"
	// moveID is a move that nobody declared.
	moveID = "3a1d2f9e-5a44-4b0e-8a43-0c0f7b6f2d11"
	// Where the programs listen in their pods: nothing but a forwarded port comes there.
	lanesAddress, ordersAddress = "127.0.0.1:7401", "127.0.0.1:7402"
	lanesPort                   = 7401
	// helper is the container beside a program that sees what it sees.
	helper = "helper"
)

// built is made by the first test that needs it.
var built struct {
	once                 sync.Once
	err                  error
	driver, mover, image string
}

// prepare builds the programs, and gives the clusters an image of the mover.
func prepare(t *testing.T) {
	t.Helper()
	user.Lab(t)
	built.once.Do(func() { built.err = makeImage(t) })
	if built.err != nil {
		t.Fatal(built.err)
	}
}

func makeImage(t *testing.T) (err error) {
	if built.driver, err = driver.Compile(t.Context()); err != nil {
		return err
	}
	if built.mover, err = driver.CompileMover(t.Context()); err != nil {
		return err
	}
	content, err := os.ReadFile(built.mover)
	if err != nil {
		return err
	}
	// Another build must have another name: nodes have the old one.
	built.image = fmt.Sprintf("docker.io/e2e/liqo-csi-mover:%x", sha256.Sum256(content))[:60]
	image := images.New(built.image, moverPath).AddProgram(built.mover, moverPath)
	if err := image.Err(); err != nil {
		return err
	}
	for _, cluster := range user.Lab(t).Clusters() {
		if err := cluster.Import(t.Context(), image); err != nil {
			return err
		}
	}
	return nil
}

// end starts the pod of one end of a move, with an empty volume of the pod's own.
func end(n *user.Namespace, t *testing.T, name, node, credentials string, flags ...string) {
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
		look := pod.Spec.Containers[0]
		look.Name = helper
		arguments := []string{name, "--move", moveID, "--root", user.DataPath, "--credentials", "/credentials", "--listen", lanesAddress}
		program := corev1.Container{
			Name:            "mover",
			Image:           built.image,
			ImagePullPolicy: corev1.PullIfNotPresent,
			Args:            append(arguments, flags...),
			VolumeMounts: []corev1.VolumeMount{
				{Name: "data", MountPath: user.DataPath},
				{Name: "credentials", MountPath: "/credentials", ReadOnly: true},
			},
		}
		pod.Spec.Containers = []corev1.Container{look, program}
	})
}
