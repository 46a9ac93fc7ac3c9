// Package mounttest makes sure that tests which mount leave nothing on the machine: they run in
// their own mount namespace, and loop devices of their files are detached after them.
package mounttest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

const inside = "REFERENCE_PRIVATE_MOUNTS"

// Main is for TestMain. As root it runs the test binary again in a mount namespace; without root it
// runs the tests, and those that need root are skipped.
func Main(m *testing.M) {
	if os.Getuid() != 0 || os.Getenv(inside) != "" {
		os.Exit(m.Run())
	}
	code, err := runInside()
	if err != nil {
		fmt.Fprintln(os.Stderr, "run tests in a mount namespace of their own:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// NeedRoot skips a test that needs root.
func NeedRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounts and loop devices need root")
	}
}

func runInside() (code int, err error) {
	files, err := os.MkdirTemp("", "ref-")
	if err != nil {
		return 1, err
	}
	again := exec.Command("/proc/self/exe", os.Args[1:]...)
	again.Env = append(os.Environ(), inside+"=yes", "TMPDIR="+files)
	again.Stdin, again.Stdout, again.Stderr = os.Stdin, os.Stdout, os.Stderr
	again.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err = again.Run()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		code, err = max(1, failed.ExitCode()), nil
	}
	return code, errors.Join(err, freeLoops(files), os.RemoveAll(files))
}

// freeLoops detaches loop devices that a failed or killed test has left.
func freeLoops(dir string) error {
	attached, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return err
	}
	var failures error
	for _, path := range attached {
		image, err := os.ReadFile(path)
		if err != nil || !strings.HasPrefix(string(image), dir+"/") {
			continue
		}
		device := "/dev/" + strings.Split(path, "/")[3]
		failures = errors.Join(failures, exec.Command("losetup", "--detach", device).Run())
	}
	return failures
}
