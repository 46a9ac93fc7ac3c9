package release

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"storage.liqo.io/sanity-tests/components"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/images"
	"storage.liqo.io/sanity-tests/machine"
)

// maxTools leaves two thirds of MaxImageSize to the driver, which these tests do not build.
const maxTools = MaxImageSize / 3

// withoutDriver returns the image without the driver, the folder where it is unpacked, and its
// size.
func withoutDriver(t *testing.T, architecture string) (image *images.Image, root string, size int64) {
	t.Helper()
	if _, err := exec.LookPath("apt-get"); err != nil {
		t.Skip("no apt-get on this machine")
	}
	image, packages, err := assemble(t.Context(), "example.test/liqo-csi:v1", architecture, "")
	if err != nil {
		t.Fatal(err)
	}
	root = t.TempDir()
	size, err = image.Unpack(root)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d KiB, of %v", size>>10, packages)
	return image, root, size
}

func TestImageHasNoUnneededFiles(t *testing.T) {
	for _, architecture := range []string{"amd64", "arm64"} {
		t.Run(architecture, func(t *testing.T) {
			image, root, size := withoutDriver(t, architecture)
			for _, path := range image.Paths() {
				file, err := os.Lstat(filepath.Join(root, path))
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("%8d %s", file.Size(), path)
				if name, is := strings.CutPrefix(path, "/usr/sbin/"); is && !slices.Contains(append(driver.Tools, "mke2fs"), name) {
					t.Errorf("the driver does not call %s", path)
				}
				for _, unwanted := range []string{"/bin", "python", "libicu", "libssl", "libcrypto."} {
					if strings.Contains(path, unwanted) {
						t.Errorf("nothing needs %s", path)
					}
				}
			}
			if size > maxTools {
				t.Errorf("%d MiB without the driver", size>>20)
			}
			for _, tool := range driver.Tools {
				if !slices.Contains(image.Paths(), "/usr/sbin/"+tool) {
					t.Errorf("%s is not in the image", tool)
				}
			}
		})
	}
}

// The image has exactly the programs that the driver calls.
func TestImageHasTheProgramsNamedInTheSources(t *testing.T) {
	named, calls := map[string]bool{}, regexp.MustCompile(`Command::new\("(.*?)"\)`)
	err := filepath.WalkDir("../..", func(path string, entry os.DirEntry, err error) error {
		switch name := entry.Name(); {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains([]string{"target", "benches", "sanity-tests", "tests", "testing", ".git", ".lab"}, name):
			return filepath.SkipDir
		case filepath.Ext(name) != ".rs" || strings.Contains(name, "test") || name == "privileged.rs":
			return nil
		}
		text, err := os.ReadFile(path)
		code, _, _ := strings.Cut(string(text), "#[cfg(test)]\nmod ")
		for _, found := range calls.FindAllStringSubmatch(code, -1) {
			named[found[1]] = true
		}
		// One call uses the names of a table.
		if _, makers, is := strings.Cut(code, "const MAKERS:"); is && strings.Contains(code, `format!("mkfs.{name}")`) {
			makers, _, _ = strings.Cut(makers, "];\n")
			for _, found := range regexp.MustCompile(`\("(\w+)", &\[`).FindAllStringSubmatch(makers, -1) {
				named["mkfs."+found[1]] = true
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for program := range named {
		if !slices.Contains(driver.Tools, program) {
			t.Errorf("the driver calls %s, which is not in the image", program)
		}
	}
	for _, tool := range driver.Tools {
		if !named[tool] {
			t.Errorf("%s is in the image, and the driver does not call it", tool)
		}
	}
}

func TestProgramsRunInTheImage(t *testing.T) {
	_, root, _ := withoutDriver(t, runtime.GOARCH)
	// mkfs.btrfs reads from this file of the kernel that the device is not mounted.
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "proc/self"), 0o755), os.WriteFile(filepath.Join(root, "proc/self/mounts"), nil, 0o600),
		os.Symlink("self/mounts", filepath.Join(root, "proc/mounts")), os.WriteFile(filepath.Join(root, "proc/swaps"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	// The position of each file system's magic number.
	magic := map[string]struct {
		at   int64
		text string
	}{"xfs": {0, "XFSB"}, "btrfs": {65536 + 64, "_BHRfS_M"}, "ext2": {1080, "\x53\xef"}, "ext3": {1080, "\x53\xef"}, "ext4": {1080, "\x53\xef"}}
	for _, tool := range driver.Tools {
		if out, err := runIn(t.Context(), root, tool, versionFlag(tool)); err != nil {
			t.Errorf("%s does not run: %v: %s", tool, err, out)
		}
		kind, makes := strings.CutPrefix(tool, "mkfs.")
		if !makes {
			continue
		}
		device := filepath.Join(root, "tmp", kind)
		if err := os.WriteFile(device, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(device, 400<<20); err != nil {
			t.Fatal(err)
		}
		if out, err := runIn(t.Context(), root, tool, "/tmp/"+kind); err != nil {
			t.Errorf("%s: %v: %s", tool, err, out)
			continue
		}
		file, err := os.Open(device)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		found := make([]byte, len(magic[kind].text))
		if _, err := file.ReadAt(found, magic[kind].at); err != nil || string(found) != magic[kind].text {
			t.Errorf("%s created no %s: %q, %v", tool, kind, found, err)
		}
	}
	// To print this, it needs a library for each of its versions and a file with the names of
	// networks, but no kernel with NFS.
	out, err := runIn(t.Context(), root, "mount.nfs", "192.0.2.1:/export", "/tmp", "-o", "nfsvers=4.2,timeo=1,retry=0,bogus")
	if err == nil || strings.Contains(string(out), "cannot open shared object") || strings.Contains(string(out), "netconfig") {
		t.Errorf("mount.nfs: %v: %s", err, out)
	}
}

func TestTooLargeImageIsRejected(t *testing.T) {
	image := images.New("example.test/large:v1").AddFile("/large", 0o644, make([]byte, MaxImageSize+1))
	if _, err := check(t.Context(), image); err == nil || !strings.Contains(err.Error(), "the maximum is 100") {
		t.Errorf("got %v", err)
	}
}

func TestImageWithAMissingLibraryIsRejected(t *testing.T) {
	image, _, _ := withoutDriver(t, runtime.GOARCH)
	for _, path := range image.Paths() {
		if strings.Contains(path, "/libblkid.so") {
			image.AddFile(path, 0o644, nil)
		}
	}
	if _, err := check(t.Context(), image); err == nil || !strings.Contains(err.Error(), "mkfs.xfs does not run in the image") {
		t.Errorf("got %v", err)
	}
}

// crane can also serve a registry.
func TestImageIsPushedToARegistry(t *testing.T) {
	crane, err := components.Tool(t.Context(), "registry", "github.com/google/go-containerregistry/cmd/crane")
	if err != nil {
		t.Fatal(err)
	}
	address := freeAddress(t)
	ctx, stop := context.WithCancel(t.Context())
	served := exec.CommandContext(ctx, crane, "registry", "serve", "--address", address)
	if err := served.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(); _ = served.Wait() })
	err = machine.Until(t.Context(), "the registry to be reachable", func() error {
		connection, err := net.DialTimeout("tcp", address, time.Second)
		if err != nil {
			return err
		}
		return connection.Close()
	})
	if err != nil {
		t.Fatal(err)
	}

	name := address + "/some/liqo-csi:v1"
	image := images.New(name, "/program").AddFile("/program", 0o755, []byte("content"))
	image.Compressed, image.User = true, "65532:65532"
	folder := t.TempDir()
	write := func(architecture string) *BuiltImage {
		image.Architecture = architecture
		built := &BuiltImage{Architecture: architecture, Archive: filepath.Join(folder, architecture+".tar")}
		out, err := os.Create(built.Archive)
		if err := errors.Join(err, images.WriteArchive(out, image), out.Close()); err != nil {
			t.Fatal(err)
		}
		return built
	}
	amd, arm := write("amd64"), write("arm64")
	if err := Push(t.Context(), name, amd); err != nil {
		t.Fatal(err)
	}
	ask := func(args ...string) string {
		said, err := exec.CommandContext(t.Context(), crane, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("crane %v: %v: %s", args, err, said)
		}
		return string(said)
	}
	ask("validate", "--remote", name)
	for _, want := range []string{`"User":"65532:65532"`, `"Entrypoint":["/program"]`, `"architecture":"amd64"`} {
		if config := ask("config", name); !strings.Contains(config, want) {
			t.Errorf("%s is not in %s", want, config)
		}
	}
	if err := Push(t.Context(), name, amd, arm); err != nil {
		t.Fatal(err)
	}
	for _, architecture := range []string{"amd64", "arm64"} {
		if config := ask("config", "--platform", "linux/"+architecture, name); !strings.Contains(config, `"architecture":"`+architecture+`"`) {
			t.Errorf("the registry has for %s: %s", architecture, config)
		}
	}
	if err := Push(t.Context(), freeAddress(t)+"/some/liqo-csi:v1", amd); err == nil || !strings.Contains(err.Error(), "push ") {
		t.Errorf("without a registry: %v", err)
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}
