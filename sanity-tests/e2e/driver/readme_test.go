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

// The README's commands install the packaged chart with its default values and the image of a release, and test the
// installation. Then a claim works.
func TestReadmeInstallsARelease(t *testing.T) {
	if os.Getenv(driver.ProfileVariable) != "release" {
		t.Skip("a development build is too large for the image of a release")
	}
	n := homeSerial(t)
	current, err := release.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	current.Dist = t.TempDir()
	binary, err := driver.Compile(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	image, err := current.Image(t.Context(), runtime.GOARCH, binary)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Cluster.Import(t.Context(), image.Image); err != nil {
		t.Fatal(err)
	}
	helm, err := chart.New(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	helm.Kubeconfig = n.Cluster.Kubeconfig()
	if err := helm.Package(t.Context(), current.Dist); err != nil {
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
	archive := filepath.Join(current.Dist, "liqo-csi-"+current.Version+".tgz")
	for _, name := range []string{"install", "test"} {
		_, command, found := strings.Cut(string(readme), "\nhelm "+name+" ")
		if !found {
			t.Fatalf("the README has no line helm %s", name)
		}
		command, _, _ = strings.Cut(command, "\n")
		command, _, _ = strings.Cut(command, "#")
		args := strings.Fields(strings.Replace(command, "deploy/chart/liqo-csi", archive, 1))
		if err := helm.Command(t.Context(), append([]string{name}, args...)...); err != nil {
			t.Fatal(err)
		}
	}
	startPod(n, "writer", "data", "liqo")
	n.Exec("writer", "date > /data/file")
	n.DeletePod("writer")
	volume := n.WaitVolume("data")
	deleteClaim(t, n, "data")
	waitVolumeDeleted(t, n, volume)
}
