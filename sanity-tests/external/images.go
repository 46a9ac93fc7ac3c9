package external

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"storage.liqo.io/sanity-tests/images"
)

// registry is the registry in the names of the tests' images. It does not exist: the images are in
// the nodes, under names that no published image has.
const registry = "e2e-test-images.storage.liqo.io"

// registryList is the file that KUBE_TEST_REPO_LIST names.
const registryList = "promoterE2eRegistry: " + registry + "\ngcRegistry: " + registry + "\n"

func (s *Suite) registries() string { return filepath.Join(s.dir, "registries.yaml") }

func (s *Suite) environment() []string {
	return append(os.Environ(), "KUBE_TEST_REPO_LIST="+s.registries())
}

// images returns the images of the tests that the specs use. Only e2e.test has their tags, so it is
// called.
func (s *Suite) images(ctx context.Context) ([]*images.Image, error) {
	cmd := exec.CommandContext(ctx, s.programs.Path("e2e.test"), "--list-images")
	cmd.Env = s.environment()
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the images that e2e.test uses: %w", err)
	}
	var made []*images.Image
	for name := range strings.FieldsSeq(string(out)) {
		repository, _, _ := strings.Cut(name, ":")
		if path.Dir(repository) != registry {
			continue
		}
		image, err := s.image(path.Base(repository))
		if err != nil {
			return nil, err
		}
		if image != nil {
			image.Name = name
			made = append(made, image)
		}
	}
	if len(made) == 0 {
		return nil, fmt.Errorf("e2e.test uses no image of %s", registry)
	}
	return made, nil
}

// image returns an image by the last part of its name; nil if none of the specs uses it.
func (s *Suite) image(name string) (*images.Image, error) {
	switch name {
	case "pause":
		return images.Pause(), nil
	case "busybox":
		return images.Busybox()
	case "nginx", "glibc-dns-testing":
		return withTools()
	case "agnhost":
		return s.agnhost()
	case "nonroot":
		image, err := images.Busybox()
		if err == nil {
			image.User = "1234"
		}
		return image, err
	case "nonewprivs":
		image, err := images.Program("", s.programs.Path("nonewprivs"))
		if err == nil {
			image.RunAsOwner(image.Entrypoint[0])
		}
		return image, err
	}
	return nil, nil
}

// withTools returns busybox with the host's sh and dd, for scripts that use options of GNU dd:
// busybox's sh would run its built-in dd. Scripts for the image busybox use built-in commands of
// its sh.
func withTools() (*images.Image, error) {
	image, err := images.Busybox()
	if err != nil {
		return nil, err
	}
	for _, program := range []string{"sh", "dd"} {
		found, err := exec.LookPath(program)
		if err != nil {
			return nil, fmt.Errorf("%w: package coreutils has dd, package dash has sh", err)
		}
		image.AddProgram(found, "/bin/"+program)
	}
	return image, image.Err()
}

// enterNode replaces nsenter in the pods with which the tests inspect a node: they read the mounts
// of process 1. A node of the lab has its own mounts, but no process 1 that has them; its kubelet
// has them, and has the same network as such a pod.
const enterNode = `#!/bin/sh
while [ "$1" != -- ]; do shift || exit 2; done
for process in /rootfs/proc/[0-9]*; do
  [ "$(cat $process/comm 2>/dev/null)" = kubelet ] || continue
  [ "$(readlink $process/ns/net)" = "$(readlink /proc/self/ns/net)" ] || continue
  exec /bin/busybox nsenter --mount=$process/ns/mnt "$@"
done
echo "no kubelet has the network of this pod" >&2
exit 1
`

// curl replaces the real curl in specs that send requests to a server in a pod. Debian's static
// busybox crashes with wget -T.
const curl = `#!/bin/sh
timeout=15
while [ $# -gt 1 ]; do
  case "$1" in
  --max-time) timeout=$2; shift ;;
  --connect-timeout) shift ;;
  -g | -q | -s) ;;
  *) echo "curl: this one does not know $1" >&2; exit 2 ;;
  esac
  shift
done
exec /bin/busybox timeout "$timeout" /bin/busybox wget -q -O - "$1"
`

func (s *Suite) agnhost() (*images.Image, error) {
	image, err := images.Busybox()
	if err != nil {
		return nil, err
	}
	image.Entrypoint, image.Cmd = []string{"/agnhost"}, []string{"pause"}
	image.AddBinary(s.programs.Path("agnhost"), "/agnhost")
	image.AddFile("/usr/bin/nsenter", 0o755, []byte(enterNode))
	image.AddFile("/usr/bin/curl", 0o755, []byte(curl))
	return image, image.Err()
}
