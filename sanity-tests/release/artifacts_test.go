package release

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/images"
)

func read(t *testing.T) *Release {
	t.Helper()
	found, err := Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestReleaseHasAllFiles(t *testing.T) {
	// A program that prints a version replaces the driver.
	stand, err := exec.LookPath("true")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(driver.BinaryVariable, stand)
	made := read(t)
	made.Dist, made.Architectures = filepath.Join(t.TempDir(), "dist"), []string{runtime.GOARCH}
	var said strings.Builder
	if _, err := made.Everything(t.Context(), &said); err != nil {
		t.Fatal(err)
	}
	base := "liqo-csi-" + made.Version
	want := []string{
		"SHA256SUMS", base + "-images.txt", base + "-linux-" + runtime.GOARCH + ".tar.gz", base + ".cdx.json",
		base + ".tgz", base + ".yaml", filepath.Base(made.ImageArchive(runtime.GOARCH)),
	}
	entries, err := os.ReadDir(made.Dist)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, entry := range entries {
		got = append(got, entry.Name())
	}
	if slices.Sort(want); !slices.Equal(got, want) {
		t.Errorf("the files are %q, want %q", got, want)
	}
	check := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", "SHA256SUMS")
	check.Dir = made.Dist
	if out, err := check.CombinedOutput(); err != nil || strings.Count(string(out), ": OK\n") != len(want)-1 {
		t.Errorf("%v: %s", err, out)
	}
	inside, err := exec.CommandContext(t.Context(), "tar", "tzf", filepath.Join(made.Dist, want[2])).Output()
	if folder := base + "-linux-" + runtime.GOARCH; err != nil || string(inside) != folder+"/liqo-csi\n"+folder+"/LICENSE\n"+folder+"/README.md\n" {
		t.Errorf("the archive of the program has %s, %v", inside, err)
	}
	listed, err := os.ReadFile(filepath.Join(made.Dist, base+"-images.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{made.ImageName, "/csi-provisioner:", "/csi-attacher:", "/csi-resizer:", "/csi-snapshotter:"} {
		if strings.Count(string(listed), name) != 1 {
			t.Errorf("%s is not listed once in\n%s", name, listed)
		}
	}
}

// The files of a release name the image that it pushes.
func TestReleaseFilesNameTheReleasedImage(t *testing.T) {
	usual := read(t).ImageName
	for name, want := range map[string]string{
		usual:                            "image:\n  repository: ghcr.io/liqo-csi/liqo-csi\n  # Empty: the chart's appVersion.\n  tag: \"\"\n",
		"registry.test:5000/team/csi:v7": "image:\n  repository: registry.test:5000/team/csi\n  # Empty: the chart's appVersion.\n  tag: \"v7\"\n",
	} {
		made := read(t)
		made.Dist, made.ImageName = t.TempDir(), name
		helm, err := made.helm(t.Context(), t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		if err := helm.Package(t.Context(), made.Dist); err != nil {
			t.Fatal(err)
		}
		archive := filepath.Join(made.Dist, "liqo-csi-"+made.Version+".tgz")
		values, err := exec.CommandContext(t.Context(), "tar", "xzOf", archive, "liqo-csi/values.yaml").Output()
		if err != nil || !strings.Contains(string(values), want) {
			t.Errorf("%s: the packaged chart does not have %s: %v\n%s", name, want, err, values)
		}
		listed, failed := made.imageList(t.Context(), helm)
		manifests, err := helm.Manifests(t.Context())
		if err := errors.Join(failed, err); err != nil {
			t.Fatal(err)
		}
		for what, text := range map[string]string{"list of images": string(listed), "manifests": string(manifests)} {
			if !strings.Contains(text, name+"\n") || name != usual && strings.Contains(text, usual) {
				t.Errorf("the %s of %s:\n%s", what, name, text)
			}
		}
	}
}

func TestSBOMListsCratesAndPackages(t *testing.T) {
	one := images.Package{Name: "nfs-common", Version: "1:2.6.2-4+deb12u1", Architecture: "amd64"}
	image := &BuiltImage{Packages: []images.Package{one, one}}
	text, err := read(t).SBOM(t.Context(), []*BuiltImage{image})
	if err != nil {
		t.Fatal(err)
	}
	var document bom
	if err := json.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	if of := document.Metadata.Component; of.Name != "liqo-csi" || of.Type != "application" {
		t.Errorf("its component is %+v", of)
	}
	refs := map[string]bool{document.Metadata.Component.Ref: true}
	names := map[string]component{}
	for _, of := range document.Components {
		if refs[of.Ref] {
			t.Errorf("%s is listed twice", of.Ref)
		}
		refs[of.Ref], names[of.Name] = true, of
		ours := strings.HasPrefix(of.Name, "liqo-csi") || strings.HasPrefix(of.Purl, "pkg:deb/")
		if !ours && (len(of.Hashes) != 1 || !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(of.Hashes[0].Content)) {
			t.Errorf("%s has no checksum: %+v", of.Ref, of.Hashes)
		}
		if !strings.HasPrefix(of.Purl, "pkg:deb/") && len(of.Licenses) != 1 {
			t.Errorf("%s has no license", of.Ref)
		}
	}
	if of := names["nfs-common"]; of.Purl != "pkg:deb/debian/nfs-common@1%3A2.6.2-4%2Bdeb12u1?arch=amd64" {
		t.Errorf("the Debian package: %+v", of)
	}
	for _, needed := range []string{"tokio", "kube", "rustls", "liqo-csi-fabric"} {
		if names[needed].Name == "" {
			t.Errorf("%s is not listed", needed)
		}
	}
	// Only tests use it.
	if names["proptest"].Name != "" {
		t.Error("proptest is listed")
	}
	for _, of := range document.Dependencies {
		for _, ref := range append(of.DependsOn, of.Ref) {
			if !refs[ref] {
				t.Errorf("%s is a dependency and not listed", ref)
			}
		}
	}
}
