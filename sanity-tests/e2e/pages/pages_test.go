// Package pages runs the commands of the pages that a new user reads first, from top to bottom and unchanged, on
// clusters without the driver.
package pages

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/components"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/e2e/user"
	"storage.liqo.io/sanity-tests/machine"
	"storage.liqo.io/sanity-tests/pages"
	"storage.liqo.io/sanity-tests/release"
)

func TestMain(m *testing.M) { user.MainWithDriver(m) }

const root = "../../../"

// limit is how long one command may take.
const limit = 2 * user.Timeout

// inLab has the differences between the lab and the description in a page.
type inLab struct {
	// notRun are beginnings of commands that are not run, and why.
	notRun map[string]string
	// replaced are parts of commands and of their output, and their replacements.
	replaced map[string]string
	// after are checks that follow commands with these beginnings.
	after map[string]func(*walk)
}

// The default class of the lab's clusters.
const pageClass, labClass = " standard ", " reference "

// The nodes of the lab are not those of kind: the README has this command for each of them.
const kindLoads, containerdLoads = "kind load image-archive ", "ctr -n k8s.io images import "

// The README, from the installation to a pod that has written into a volume.
func TestReadmeIsRunFromTopToBottom(t *testing.T) {
	home := user.Cluster(t, "home")
	w := newWalk(t, inLab{notRun: map[string]string{
		"make image": "the suite \"release image\" builds it; here dist has the build that is tested, under the same name",
	}, replaced: map[string]string{pageClass: labClass, kindLoads: onEachNode + containerdLoads}}, map[string]*clusters.Cluster{"home": home})
	t.Cleanup(w.deleteDiary)
	w.run("README.md")
}

// The page that connects a second cluster, up to a StatefulSet over both, a move, and disconnecting.
func TestTwoClustersAreConnectedFromTopToBottom(t *testing.T) {
	home, milan := user.Cluster(t, "home"), user.Cluster(t, "remote")
	through, err := clientcmd.BuildConfigFromFlags("", milan.ProxyKubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	const connect = "connect milan --fabric --remote-context milan"
	w := newWalk(t, inLab{replaced: map[string]string{
		// Like that of kind, the kubeconfig has an address of this machine. The page describes what to add
		// in this case.
		connect:   connect + " --server " + through.Host,
		pageClass: labClass,
	}, after: map[string]func(*walk){
		"liqo-csi " + connect:    (*walk).certificatesAreApproved,
		"kubectl rollout status": (*walk).podsThereAreReached,
	}}, map[string]*clusters.Cluster{"home": home, "milan": milan})
	t.Cleanup(w.disconnect)
	w.loadImage()
	w.run("docs/remote/two-clusters.md")
}

// The page that installs the driver with kubectl, and uninstalls it.
func TestGitOpsIsRunFromTopToBottom(t *testing.T) {
	w := newWalk(t, inLab{}, map[string]*clusters.Cluster{"home": user.Cluster(t, "home")})
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		// What the page ends with; helm uninstall would not find these objects.
		const uninstall = `[ ! -e liqo-csi.yaml ] || awk 'BEGIN { RS = ORS = "---\n" } !/kind: CustomResourceDefinition/' liqo-csi.yaml |
			kubectl delete --ignore-not-found -f -`
		if out, err := w.shell(user.CleanupContext(t), uninstall); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	w.loadImage()
	w.run("docs/gitops.md")
	// Helm and the page keep this one.
	if _, err := w.client.CoreV1().Secrets(chart.Namespace).Get(t.Context(), "liqo-csi-sessions", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

// walk runs a page in one shell, as a user does.
type walk struct {
	t      *testing.T
	lab    inLab
	home   *clusters.Cluster
	client kubernetes.Interface
	// folder is the working directory. Like a clone of the repository after make image, it has the folder of the chart
	// and the archive. The shell keeps its variables in the file state from one command to the next.
	folder, archive, state string
	environment            []string
}

func newWalk(t *testing.T, lab inLab, contexts map[string]*clusters.Cluster) *walk {
	t.Helper()
	w := &walk{t: t, lab: lab, home: contexts["home"], folder: t.TempDir()}
	w.state = filepath.Join(t.TempDir(), "state")
	var err error
	if w.client, err = w.home.Client(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.withoutDriver(user.CleanupContext(t)); err != nil {
			t.Error(err)
		}
	})
	if err := w.withoutDriver(t.Context()); err != nil {
		t.Fatal(err)
	}
	released, err := release.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, cluster := range contexts {
		withoutImage(t, cluster, released.ImageName)
	}
	released.Dist = filepath.Join(w.folder, "dist")
	w.archive = released.ImageArchive(runtime.GOARCH)
	if err := errors.Join(os.Mkdir(released.Dist, 0o755), driver.WriteImageAs(t.Context(), released.ImageName, w.archive)); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(released.Root, "deploy"), filepath.Join(w.folder, "deploy")); err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := merged(contexts)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(file, kubeconfig, 0o600); err != nil {
		t.Fatal(err)
	}
	programs, err := w.programs(contexts)
	if err != nil {
		t.Fatal(err)
	}
	w.environment = []string{"KUBECONFIG=" + file, "HOME=" + t.TempDir(), "PATH=" + programs + ":/usr/local/bin:/usr/bin:/bin"}
	return w
}

// merged is a kubeconfig with these contexts. The current one is home.
func merged(contexts map[string]*clusters.Cluster) ([]byte, error) {
	all := clientcmdapi.NewConfig()
	all.CurrentContext = "home"
	for name, cluster := range contexts {
		config, err := clientcmd.LoadFromFile(cluster.Kubeconfig())
		if err != nil {
			return nil, err
		}
		current := config.Contexts[config.CurrentContext]
		all.Clusters[name] = config.Clusters[current.Cluster]
		all.AuthInfos[name] = config.AuthInfos[current.AuthInfo]
		all.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	}
	return clientcmd.Write(*all)
}

// withoutImage removes the driver's images from the nodes of a cluster, so that none is there unless the page's command
// loads it.
func withoutImage(t *testing.T, cluster *clusters.Cluster, name string) {
	t.Helper()
	if err := driver.RemoveImages(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	repository, _, _ := strings.Cut(name, ":")
	for _, node := range cluster.Nodes() {
		present, err := node.Images(t.Context(), string(user.Lab(t).Binaries()))
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range present {
			if strings.HasPrefix(one, repository+":") {
				t.Fatalf("the node %s has the image %s", node.Name, one)
			}
		}
	}
}

// loadImage does what the README says to do on each node, for pages that assume it.
func (w *walk) loadImage() {
	w.t.Helper()
	if readme, err := os.ReadFile(root + "README.md"); err != nil || !strings.Contains(string(readme), "`sudo "+containerdLoads) {
		w.t.Fatalf("the README does not contain %q: %v", containerdLoads, err)
	}
	if out, err := w.shell(w.t.Context(), onEachNode+containerdLoads+w.archive); err != nil {
		w.t.Fatalf("%v: %s", err, out)
	}
}

// onEachNode runs a command for the containerd of each node.
const onEachNode = "on-each-node "

// programs is a folder with the programs that the pages call.
func (w *walk) programs(contexts map[string]*clusters.Cluster) (folder string, err error) {
	folder = w.t.TempDir()
	helm, err := components.Tool(w.t.Context(), "helm", "helm.sh/helm/v4/cmd/helm")
	if err != nil {
		return "", err
	}
	liqoCSI, err := driver.Compile(w.t.Context())
	if err != nil {
		return "", err
	}
	of := user.Lab(w.t).Binaries()
	for name, program := range map[string]string{
		"helm": helm, "liqo-csi": liqoCSI, "kubectl": of.Path("kubectl"), "ctr": of.Path("ctr"),
	} {
		if err := os.Symlink(program, filepath.Join(folder, name)); err != nil {
			return "", err
		}
	}
	script := "#!/bin/sh\n"
	for _, cluster := range contexts {
		for _, node := range cluster.Nodes() {
			script += fmt.Sprintf("CONTAINERD_ADDRESS=%q \"$@\" || exit\n", node.ContainerdSocket())
		}
	}
	return folder, os.WriteFile(filepath.Join(folder, strings.TrimSpace(onEachNode)), []byte(script), 0o755)
}

// run runs the commands of a page, and compares what they print with what the page shows.
func (w *walk) run(file string) {
	w.t.Helper()
	text, err := os.ReadFile(root + file)
	if err != nil {
		w.t.Fatal(err)
	}
	steps, err := pages.Steps(string(text), "mermaid")
	if err != nil {
		w.t.Fatalf("%s: %v", file, err)
	}
	began, commands, used := time.Now(), 0, map[string]bool{}
	for _, step := range steps {
		var printed strings.Builder
		for _, command := range step.Commands {
			commands++
			text, run := w.asInLab(command.Text, used)
			if !run {
				continue
			}
			out, err := w.shell(w.t.Context(), text)
			if err != nil {
				w.t.Fatalf("%s:%d: %v\n%s\n%s", file, command.Line, err, text, out)
			}
			printed.WriteString(out)
			for beginning, check := range w.lab.after {
				if strings.HasPrefix(command.Text, beginning) {
					used[beginning] = true
					check(w)
				}
			}
		}
		shown := w.replace(step.Shown, used)
		if missing := pages.Missing(shown, printed.String()); len(missing) > 0 {
			w.t.Errorf("%s:%d: the page shows %q, which is not in what the commands print:\n%s",
				file, step.Commands[0].Line, missing, printed.String())
		}
	}
	for _, part := range slices.Concat(slices.Collect(maps.Keys(w.lab.notRun)), slices.Collect(maps.Keys(w.lab.after))) {
		if !used[part] {
			w.t.Errorf("%s does not contain the command %q", file, part)
		}
	}
	for part := range w.lab.replaced {
		if !used[part] {
			w.t.Errorf("%s does not contain %q", file, part)
		}
	}
	w.t.Logf("%s: %d commands, %.1f minutes", file, commands, time.Since(began).Minutes())
}

// certificatesAreApproved checks that connect has approved the serving certificate of each pod of the fabric. The page does not
// set fabric.streams.approveCertificates, and the API servers of the lab verify these certificates.
func (w *walk) certificatesAreApproved() {
	w.t.Helper()
	pods, err := w.client.CoreV1().Pods(chart.Namespace).List(w.t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=fabric"})
	if err != nil {
		w.t.Fatal(err)
	}
	requests, err := w.client.CertificatesV1().CertificateSigningRequests().List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	approved := map[string]bool{}
	for _, request := range requests.Items {
		for _, condition := range request.Status.Conditions {
			if condition.Type == certificatesv1.CertificateApproved && strings.Contains(condition.Message, "(liqo-csi connect)") {
				approved[fmt.Sprint(request.Spec.Extra["authentication.kubernetes.io/pod-name"])] = true
			}
		}
	}
	if len(pods.Items) == 0 {
		w.t.Error("the fabric has no pods")
	}
	for _, pod := range pods.Items {
		if !approved[fmt.Sprint([]string{pod.Name})] {
			w.t.Errorf("connect has not approved the serving certificate of %s", pod.Name)
		}
	}
}

// podsThereAreReached reads logs of pods on the virtual node, and runs a command in them, at the first attempt.
func (w *walk) podsThereAreReached() {
	w.t.Helper()
	there := metav1.ListOptions{FieldSelector: "spec.nodeName=milan"}
	pods, err := w.client.CoreV1().Pods("shop").List(w.t.Context(), there)
	if err != nil || len(pods.Items) == 0 {
		w.t.Fatalf("%d pods run on the node milan: %v", len(pods.Items), err)
	}
	for _, pod := range pods.Items {
		for _, command := range []string{"kubectl logs -n shop " + pod.Name, "kubectl exec -n shop " + pod.Name + " -- cat /data/diary"} {
			if out, err := w.shell(w.t.Context(), command); err != nil {
				w.t.Errorf("%s: %v: %s", command, err, out)
			}
		}
	}
}

// asInLab is a command with the lab's replacements; not run if the lab cannot run it.
func (w *walk) asInLab(command string, used map[string]bool) (text string, run bool) {
	for beginning, why := range w.lab.notRun {
		if strings.HasPrefix(command, beginning) {
			w.t.Logf("not run: %s: %s", strings.TrimSpace(command), why)
			used[beginning] = true
			return "", false
		}
	}
	return w.replace(command, used), true
}

func (w *walk) replace(text string, used map[string]bool) string {
	for part, instead := range w.lab.replaced {
		if strings.Contains(text, part) {
			text = strings.ReplaceAll(text, part, instead)
			used[part] = true
		}
	}
	return text
}

// shell runs one command, with the variables of those before.
func (w *walk) shell(ctx context.Context, text string) (printed string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it takes more than %s", limit))
	defer cancel()
	// Not set -e, which ignores a failure on the left of &&.
	script := fmt.Sprintf("[ ! -e %[1]q ] || . %[1]q\n%[2]s\ncode=$?\ndeclare -p | grep -v '^declare -[a-z]*r' > %[1]q\nexit $code\n", w.state, text)
	command := exec.CommandContext(ctx, "bash", "-c", script)
	command.Dir, command.Env = w.folder, w.environment
	var out bytes.Buffer
	command.Stdout, command.Stderr = &out, &out
	command.WaitDelay = 5 * time.Second
	if err = command.Run(); err != nil {
		err = errors.Join(err, context.Cause(ctx))
	}
	return out.String(), err
}

// withoutDriver removes the driver from the home cluster, except for its CustomResourceDefinitions.
func (w *walk) withoutDriver(ctx context.Context) error {
	twins, err := w.client.CoreV1().PersistentVolumeClaims(chart.StorageNamespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(twins.Items) > 0 {
		return fmt.Errorf("%d twins are left, and the driver is needed to delete them; one is %s", len(twins.Items), twins.Items[0].Name)
	}
	err = errors.Join(driver.Uninstall(ctx, w.home), driver.UndefineOffloading(ctx, w.home))
	for _, name := range []string{chart.StorageNamespace, chart.Namespace} {
		err = errors.Join(err, w.deleteNamespace(ctx, name))
	}
	return err
}

func (w *walk) deleteNamespace(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, user.Timeout)
	defer cancel()
	namespaces := w.client.CoreV1().Namespaces()
	if err := namespaces.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return machine.Until(ctx, "the namespace "+name+" to be deleted", func() error {
		found, err := namespaces.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		return fmt.Errorf("%v", found.Status.Conditions)
	})
}

// deleteDiary deletes what the README creates, and waits until no volume is left.
func (w *walk) deleteDiary() {
	ctx := user.CleanupContext(w.t)
	core := w.client.CoreV1()
	for _, err := range []error{
		core.Pods(corev1.NamespaceDefault).Delete(ctx, "writer", metav1.DeleteOptions{}),
		core.PersistentVolumeClaims(corev1.NamespaceDefault).Delete(ctx, "diary", metav1.DeleteOptions{}),
		w.volumesGone(ctx, corev1.NamespaceDefault),
	} {
		if err != nil && !apierrors.IsNotFound(err) {
			w.t.Error(err)
		}
	}
}

func (w *walk) volumesGone(ctx context.Context, namespace string) error {
	return machine.Until(ctx, "the volumes of "+namespace+" to be deleted", func() error {
		volumes, err := w.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, volume := range volumes.Items {
			// Other tests leave volumes that are retained.
			deleted := volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
			if of := volume.Spec.ClaimRef; deleted && of != nil && (of.Namespace == namespace || of.Namespace == chart.StorageNamespace) {
				return fmt.Errorf("%s is %s", volume.Name, volume.Status.Phase)
			}
		}
		return nil
	})
}

// disconnect does the last step of the page, if an earlier command failed.
func (w *walk) disconnect() {
	if !w.t.Failed() {
		return
	}
	ctx := user.CleanupContext(w.t)
	if err := errors.Join(w.deleteNamespace(ctx, "shop"), w.volumesGone(ctx, "shop")); err != nil {
		w.t.Error(err)
		return
	}
	if out, err := w.shell(ctx, "liqo-csi disconnect milan --remote-context milan"); err != nil {
		w.t.Errorf("%v: %s", err, out)
	}
}
