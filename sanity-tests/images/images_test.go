package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
)

func example(t *testing.T) *Image {
	t.Helper()
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("#!"), 0o700); err != nil {
		t.Fatal(err)
	}
	return New("example.test/some/program:v1", "/program").
		AddBinary(program, "/program").
		AddBinary(program, "/as-root").RunAsOwner("/as-root").
		AddLink("/bin/sh", "/program").
		AddFile("/etc/deep/er/file", 0o640, []byte("content"))
}

func archive(t *testing.T, images ...*Image) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := WriteArchive(&out, images...); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// members reads a tar as a map of contents.
func members(t *testing.T, raw []byte) (map[string][]byte, map[string]*tar.Header) {
	t.Helper()
	contents, headers := map[string][]byte{}, map[string]*tar.Header{}
	for reader := tar.NewReader(bytes.NewReader(raw)); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return contents, headers
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(reader)
		if err != nil {
			t.Fatal(err)
		}
		contents[header.Name], headers[header.Name] = content, header
	}
}

func TestArchivesAreReproducible(t *testing.T) {
	if !bytes.Equal(archive(t, example(t)), archive(t, example(t))) {
		t.Error("the same image has two different archives")
	}
}

func TestArchiveContainsTheImage(t *testing.T) {
	parts, _ := members(t, archive(t, example(t), Pause()))
	var manifest []dockerEntry
	if err := json.Unmarshal(parts["manifest.json"], &manifest); err != nil {
		t.Fatal(err)
	}
	if len(manifest) != 2 || manifest[0].RepoTags[0] != "example.test/some/program:v1" || manifest[1].RepoTags[0] != PauseName {
		t.Fatalf("manifest: %+v", manifest)
	}
	if !bytes.Contains(parts[manifest[0].Config], []byte(`"Entrypoint":["/program"]`)) {
		t.Errorf("configuration: %s", parts[manifest[0].Config])
	}

	contents, headers := members(t, parts[manifest[0].Layers[0]])
	if string(contents["etc/deep/er/file"]) != "content" || headers["etc/deep/er/file"].Mode != 0o640 {
		t.Errorf("file: %q, %+v", contents["etc/deep/er/file"], headers["etc/deep/er/file"])
	}
	if headers["etc/deep/er/"] == nil || headers["etc/deep/er/"].Typeflag != tar.TypeDir {
		t.Error("the folders of a file are missing")
	}
	if link := headers["bin/sh"]; link == nil || link.Linkname != "/program" {
		t.Errorf("link: %+v", link)
	}
	if headers["program"].Mode != 0o755 || headers["as-root"].Mode != 0o4755 {
		t.Errorf("programs: %+v, %+v", headers["program"], headers["as-root"])
	}
	if headers["tmp/"].Mode != 0o1777 {
		t.Errorf("tmp: %+v", headers["tmp/"])
	}
}

// containerd imports the OCI layout, Docker the docker-archive.
func TestArchiveIsAnOCILayout(t *testing.T) {
	image := example(t)
	image.Compressed, image.Architecture = true, "arm64"
	parts, _ := members(t, archive(t, image, Pause()))
	for name, content := range parts {
		if digest, is := strings.CutPrefix(name, "blobs/sha256/"); is && digest != fmt.Sprintf("%x", sha256.Sum256(content)) {
			t.Errorf("%s is not named after its content", name)
		}
	}
	if string(parts["oci-layout"]) != `{"imageLayoutVersion":"1.0.0"}` {
		t.Errorf("oci-layout: %s", parts["oci-layout"])
	}
	var index ociIndex
	var manifest ociManifest
	var config struct {
		Architecture string
		RootFS       struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	read := func(name string, into any) {
		t.Helper()
		if err := json.Unmarshal(parts[name], into); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	read("index.json", &index)
	if len(index.Manifests) != 2 {
		t.Fatalf("index: %+v", index)
	}
	first := index.Manifests[0]
	if first.Annotations["io.containerd.image.name"] != image.Name || first.Annotations["org.opencontainers.image.ref.name"] != "v1" ||
		first.Platform["architecture"] != "arm64" {
		t.Errorf("index: %+v", first)
	}
	read(first.path(), &manifest)
	read(manifest.Config.path(), &config)
	layer, err := gzip.NewReader(bytes.NewReader(parts[manifest.Layers[0].path()]))
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(layer)
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("sha256:%x", sha256.Sum256(content)); config.Architecture != "arm64" || config.RootFS.DiffIDs[0] != want {
		t.Errorf("configuration: %+v, want the layer %s", config, want)
	}
	if manifest.Layers[0].MediaType != layerType+"+gzip" || manifest.Layers[0].Size != int64(len(parts[manifest.Layers[0].path()])) {
		t.Errorf("layer: %+v", manifest.Layers[0])
	}
}

func TestMissingFilesAreReported(t *testing.T) {
	image := New("example.test/broken:v1").AddBinary("/does/not/exist", "/x").AddHostBinaries("/neither/does/this")
	err := WriteArchive(io.Discard, image)
	for _, want := range []string{"example.test/broken:v1", "/does/not/exist", "/neither/does/this"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v is not fs.ErrNotExist", err)
	}
}

func TestParseLdd(t *testing.T) {
	got, err := parseLdd("x", `	linux-vdso.so.1 (0x00007ffd)
	libblkid.so.1 => /lib/x86_64-linux-gnu/libblkid.so.1 (0x00007f)
	/lib64/ld-linux-x86-64.so.2 (0x00007f)
`)
	want := []string{"/lib/x86_64-linux-gnu/libblkid.so.1", "/lib64/ld-linux-x86-64.so.2"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := parseLdd("x", "\tlibgone.so => not found\n"); err == nil || !strings.Contains(err.Error(), "libgone.so") {
		t.Errorf("a missing library: %v", err)
	}
}

func TestHostBinariesIncludeTheirLibraries(t *testing.T) {
	const program = "/usr/bin/env"
	if _, err := os.Stat(program); err != nil {
		t.Skip("no " + program + " on this machine")
	}
	image := New("example.test/host:v1").AddHostBinaries(program)
	if err := image.Err(); err != nil {
		t.Fatal(err)
	}
	libraries, err := sharedLibraries(program)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(libraries, program) {
		if _, there := image.files[name]; !there {
			t.Errorf("%s is not in the image", name)
		}
	}
}

func TestImageNameDependsOnContent(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	named := func(content string) *Image {
		if err := os.WriteFile(program, []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
		image := New("", "/program").AddBinary(program, "/program")
		if err := image.NameByContent("example.test/program"); err != nil {
			t.Fatal(err)
		}
		return image
	}
	first, again, other := named("one"), named("one"), named("two")
	if first.Name != again.Name || first.Name == other.Name || !strings.HasPrefix(first.Name, "example.test/program:") {
		t.Errorf("the names are %s, %s and %s", first.Name, again.Name, other.Name)
	}
	// The file of the program was replaced.
	if _, err := first.Archive(); err == nil {
		t.Error("an archive was written with the name of other content")
	}
}

func TestArchiveIsWrittenOnce(t *testing.T) {
	image := example(t)
	want := archive(t, image)
	for range 2 {
		reader, err := image.Archive()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(reader); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%d bytes, not %d: %v", len(got), len(want), err)
		}
		// Later calls return the archive of the first one.
		image.AddFile("/late", 0o644, []byte("late"))
	}
}

// Several packages of tests fetch Debian packages at the same time, the first ones into an empty cache.
func TestDebianPackagesAreFetchedByOneProcessAtATime(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	var fetching errgroup.Group
	for range 4 {
		fetching.Go(func() error {
			_, err := UnpackDebianAlone(t.Context(), "amd64", "hostname")
			return err
		})
	}
	if err := fetching.Wait(); err != nil {
		t.Error(err)
	}
}
