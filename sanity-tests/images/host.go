package images

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// AddHostBinaries adds programs of the host, with their shared libraries, at the same paths.
func (i *Image) AddHostBinaries(programs ...string) *Image {
	for _, program := range programs {
		libraries, err := sharedLibraries(program)
		if err != nil {
			i.failures = append(i.failures, err)
			continue
		}
		for _, name := range append(libraries, program) {
			i.addHostFile(name)
		}
	}
	return i
}

// AddProgram adds a program of the host under another path, and its shared libraries at the same
// paths.
func (i *Image) AddProgram(source, target string) *Image {
	libraries, err := sharedLibraries(source)
	if err != nil {
		i.failures = append(i.failures, err)
		return i
	}
	for _, name := range libraries {
		i.addHostFile(name)
	}
	return i.AddBinary(source, target)
}

// addHostFile adds a file of the host under this path, even if the path contains links on the host.
func (i *Image) addHostFile(name string) {
	real, err := filepath.EvalSymlinks(name)
	if err != nil {
		i.failures = append(i.failures, fmt.Errorf("add %s: %w", name, err))
		return
	}
	i.AddBinary(real, name)
}

// sharedLibraries returns the shared libraries of a program, from the dynamic loader.
func sharedLibraries(program string) ([]string, error) {
	parsed, err := elf.Open(program)
	if err != nil {
		return nil, fmt.Errorf("read the program %s: %w", program, err)
	}
	defer parsed.Close()
	if _, err := parsed.ImportedLibraries(); err != nil || parsed.Section(".interp") == nil {
		return nil, err // static
	}
	out, err := exec.Command("ldd", program).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("find the libraries of %s: %w: %s", program, err, out)
	}
	return parseLdd(program, string(out))
}

// parseLdd parses lines such as "libc.so.6 => /lib/x/libc.so.6 (0x7f…)" and
// "/lib64/ld-linux-x86-64.so.2 (0x7f…)".
func parseLdd(program, out string) ([]string, error) {
	var libraries []string
	for line := range strings.Lines(out) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), " (0x")
		name, found, resolved := strings.Cut(line, " => ")
		if resolved && found == "not found" {
			return nil, fmt.Errorf("%s needs %s, which the host does not have", program, name)
		}
		if resolved {
			name = found
		}
		if filepath.IsAbs(name) {
			libraries = append(libraries, name)
		}
	}
	if len(libraries) == 0 {
		return nil, errors.New("no libraries in the output of ldd for " + program)
	}
	return libraries, nil
}

// BusyboxPath is the path in Debian's busybox-static.
const BusyboxPath = "/bin/busybox"

// Names of the images for workloads and for pod sandboxes.
const (
	BusyboxName = "docker.io/library/busybox:1.37"
	PauseName   = "registry.k8s.io/pause:3.10.1"
)

// Busybox is a small image for workloads: a shell and the usual tools.
func Busybox() (*Image, error) {
	out, err := exec.Command(BusyboxPath, "--list-full").Output()
	if err != nil {
		return nil, fmt.Errorf("list the tools of busybox (package busybox-static): %w", err)
	}
	image := New(BusyboxName)
	image.Cmd = []string{"sh"}
	for applet := range strings.FieldsSeq(string(out)) {
		image.AddLink("/"+applet, BusyboxPath)
	}
	return image.AddBinary(BusyboxPath, BusyboxPath), image.Err()
}

// Pause returns the image of pod sandboxes, whose program only waits.
func Pause() *Image {
	return New(PauseName, BusyboxPath, "sleep", "2147483647").AddBinary(BusyboxPath, BusyboxPath)
}

// Program returns an image that runs one static program, at the path and under the name of the
// published image.
func Program(name, binary string) (*Image, error) {
	if _, err := os.Stat(binary); err != nil {
		return nil, fmt.Errorf("image %s: %w", name, err)
	}
	inside := "/" + filepath.Base(binary)
	image := New(name, inside).AddBinary(binary, inside)
	return image, image.Err()
}
