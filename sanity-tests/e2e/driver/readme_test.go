package driver

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/release"
)

// What a user does first: the image of a release under the name in the chart, the packaged chart with
// its own values, the README's command, and a claim.
func TestReadmeInstallsARelease(t *testing.T) {
	if os.Getenv(driver.ProfileVariable) != "release" {
		t.Skip("a development build is too large for the image of a release")
	}
	n := homeAlone(t)
	made, err := release.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	made.Dist = t.TempDir()
	binary, err := driver.Compile(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	built, err := made.Image(t.Context(), runtime.GOARCH, binary)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Cluster.Import(t.Context(), built.Image); err != nil {
		t.Fatal(err)
	}
	helm, err := chart.New(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	helm.Kubeconfig = n.Cluster.Kubeconfig()
	if err := helm.Package(t.Context(), made.Dist); err != nil {
		t.Fatal(err)
	}

	if err := driver.Uninstall(t.Context(), n.Cluster); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := driver.Uninstall(ctx, n.Cluster); err != nil {
			t.Error(err)
		}
		if err := install(ctx, n.Cluster); err != nil {
			t.Error(err)
		}
	})
	readme, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, command, found := strings.Cut(string(readme), "\nhelm install ")
	if !found {
		t.Fatal("the README has no line helm install")
	}
	command, _, _ = strings.Cut(command, "\n")
	archive := filepath.Join(made.Dist, "liqo-csi-"+made.Version+".tgz")
	args := strings.Fields(strings.Replace(command, "deploy/chart/liqo-csi", archive, 1))
	if err := helm.Command(t.Context(), append([]string{"install"}, args...)...); err != nil {
		t.Fatal(err)
	}
	n.Claim("diary", "liqo", "64Mi")
	n.Pod("writer", "diary")
	n.WaitReady("writer")
	n.Exec("writer", "date > /data/pages")
	n.DeletePod("writer")
	volume := n.WaitVolume("diary")
	deleteClaim(t, n, "diary")
	wantGone(t, n, volume)
}
