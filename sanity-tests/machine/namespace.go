package machine

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Namespace is a network namespace and, for nodes, a mount namespace, both kept
// alive by files in the state directory rather than by a process. The zero
// value is the host.
type Namespace struct {
	Name string
	// Dirs is the host folder that holds the node's own version of PrivateDirs;
	// empty when only the network is its own.
	Dirs string
}

// PrivateDirs are the folders of the file system that each node has for
// itself; everything else is the host's. They are where Kubernetes, containerd
// and CNI keep their state under well-known names, so every node has the
// standard paths and nothing is left behind at them on the host.
var PrivateDirs = []string{"/run", "/opt", "/mnt", "/var/log", "/var/lib"}

// IsHost reports whether this is the host's own pair of namespaces.
func (n Namespace) IsHost() bool { return n.Name == "" }

// NetFile is the file that keeps the network namespace alive.
func (n Namespace) NetFile() string { return Path("ns", "lqlab-"+n.Name+".net") }

// MountFile is the file that keeps the mount namespace alive.
func (n Namespace) MountFile() string { return Path("ns", "lqlab-"+n.Name+".mnt") }

// HostPath translates a path inside the node to where it is on the host.
func (n Namespace) HostPath(path string) string {
	for _, dir := range PrivateDirs {
		if n.Dirs != "" && within(dir, path) {
			return filepath.Join(n.Dirs, privateName(dir), strings.TrimPrefix(path, dir))
		}
	}
	return path
}

func privateName(dir string) string {
	return strings.ReplaceAll(strings.TrimPrefix(dir, "/"), "/", "-")
}

// enter returns the words that run a command inside the namespaces. Not `ip
// netns exec`: that makes yet another mount namespace.
func (n Namespace) enter() []string {
	if n.IsHost() {
		return nil
	}
	words := []string{"nsenter", "--net=" + n.NetFile()}
	if n.Dirs != "" {
		words = append(words, "--mount="+n.MountFile())
	}
	return append(words, "--")
}

// Command prepares a command that runs inside the namespaces.
func (n Namespace) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	words := append(n.enter(), append([]string{name}, args...)...)
	return exec.CommandContext(ctx, words[0], words[1:]...)
}

// Run runs a command inside the namespaces and returns an error that carries
// what it said.
func (n Namespace) Run(ctx context.Context, name string, args ...string) error {
	return runQuietly(n.Command(ctx, name, args...))
}

func runQuietly(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Ensure creates the namespaces unless they exist. binds maps folders of the
// host to where the node sees them, inside its private folders.
func (n Namespace) Ensure(binds map[string]string) error {
	table, err := Mounts()
	if err != nil {
		return err
	}
	if table.Has(n.NetFile()) && (n.Dirs == "" || table.Has(n.MountFile())) {
		return nil
	}
	if n.Dirs != "" {
		for _, dir := range PrivateDirs {
			if err := os.MkdirAll(n.HostPath(dir), 0o755); err != nil {
				return fmt.Errorf("create the private folders of %s: %w", n.Name, err)
			}
		}
	}

	made, keep := make(chan error), make(chan error)
	var thread int
	go func() {
		// The thread is never unlocked: it ends with this goroutine, so no
		// other goroutine ever runs in the new namespaces by accident.
		runtime.LockOSThread()
		thread = unix.Gettid()
		err := n.unshare(binds)
		made <- err
		if err == nil {
			<-keep
		}
	}()
	if err := <-made; err != nil {
		return fmt.Errorf("create the namespaces of %s: %w", n.Name, err)
	}
	defer close(keep)

	proc := fmt.Sprintf("/proc/self/task/%d/ns/", thread)
	if err := pin(proc+"net", n.NetFile()); err != nil {
		return err
	}
	if n.Dirs == "" {
		return nil
	}
	return pin(proc+"mnt", n.MountFile())
}

func pin(namespace, file string) error {
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return fmt.Errorf("create the namespace file: %w", err)
	}
	if err := unix.Mount(namespace, file, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("keep a namespace at %s: %w", file, err)
	}
	return nil
}

// unshare moves the calling thread into new namespaces and lays them out.
func (n Namespace) unshare(binds map[string]string) error {
	if n.Dirs == "" {
		return unix.Unshare(unix.CLONE_NEWNET)
	}
	// CLONE_FS: threads share their root and working directory, and the kernel
	// refuses a mount namespace to those that do.
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS | unix.CLONE_NEWNET); err != nil {
		return err
	}
	for source, target := range binds {
		inside := n.HostPath(target)
		if err := os.MkdirAll(inside, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(source, inside, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind %s on %s: %w", source, target, err)
		}
	}
	return n.hideHost()
}

// hideHost puts the private folders over the host's. The clones stay peers of
// the host's view of the state directory, so the host sees what is mounted
// below them; nothing else that happens in here reaches the host, and the state
// directory itself (with the other nodes in it) is out of sight.
func (n Namespace) hideHost() error {
	clones := make([]int, len(PrivateDirs))
	for i, dir := range PrivateDirs {
		clone, err := unix.OpenTree(unix.AT_FDCWD, n.HostPath(dir),
			unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if err != nil {
			return fmt.Errorf("clone the folder for %s: %w", dir, err)
		}
		defer unix.Close(clone)
		clones[i] = clone
	}

	// Private before detaching: taking away a shared copy would take away the
	// original's mounts too.
	if err := unix.Mount("", StateDir, "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make the state directory private: %w", err)
	}
	if err := unix.Unmount(StateDir, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("hide the state directory: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("keep mounts from the host: %w", err)
	}
	// Shared again (among the node and its containers only).
	if err := unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("share mounts with containers: %w", err)
	}
	for i, dir := range PrivateDirs {
		if err := unix.MoveMount(clones[i], "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("put the node's own %s in place: %w", dir, err)
		}
	}
	return nil
}

// InNetwork calls do on a thread that is in the network namespace: sockets and
// sysctls it opens belong there.
func (n Namespace) InNetwork(do func() error) error {
	if n.IsHost() {
		return do()
	}
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // ends with this goroutine, see Ensure
		result <- func() error {
			file, err := os.Open(n.NetFile())
			if err != nil {
				return fmt.Errorf("open the network namespace of %s: %w", n.Name, err)
			}
			defer file.Close()
			if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("enter the network namespace of %s: %w", n.Name, err)
			}
			return do()
		}()
	}()
	return <-result
}
