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

// Namespace is a network namespace and, for nodes, a mount namespace. Files in the state directory keep
// them alive. The zero value is the host.
type Namespace struct {
	Name string
	// Dirs is the host's folder with the node's PrivateDirs; empty without a mount namespace.
	Dirs string
}

// PrivateDirs are the folders that each node has for itself, because Kubernetes, containerd and CNI
// have state in them; nodes share all others with the host.
var PrivateDirs = []string{"/run", "/opt", "/mnt", "/var/log", "/var/lib"}

// IsHost reports whether these are the host's namespaces.
func (n Namespace) IsHost() bool { return n.Name == "" }

// NetFile returns the file that keeps the network namespace alive.
func (n Namespace) NetFile() string { return Path("ns", "lqlab-"+n.Name+".net") }

// MountFile returns the file that keeps the mount namespace alive.
func (n Namespace) MountFile() string { return Path("ns", "lqlab-"+n.Name+".mnt") }

// HostPath returns the host's path of a path inside the node.
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

// enter returns the prefix of a command inside the namespaces. Not `ip netns exec`, which creates
// another mount namespace.
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

// Command returns a command that runs inside the namespaces.
func (n Namespace) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	words := append(n.enter(), append([]string{name}, args...)...)
	return exec.CommandContext(ctx, words[0], words[1:]...)
}

// Run runs a command inside the namespaces. The error has its output.
func (n Namespace) Run(ctx context.Context, name string, args ...string) error {
	return runQuietly(n.Command(ctx, name, args...))
}

func runQuietly(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Ensure creates the namespaces unless they exist. binds maps folders of the host to paths in the
// node's private folders.
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

	created, keep := make(chan error), make(chan error)
	var thread int
	go func() {
		// The thread is not unlocked: it ends with this goroutine, so that no other goroutine runs in
		// the new namespaces.
		runtime.LockOSThread()
		thread = unix.Gettid()
		err := n.unshare(binds)
		created <- err
		if err == nil {
			<-keep
		}
	}()
	if err := <-created; err != nil {
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

// unshare moves the calling thread into new namespaces and sets up their mounts.
func (n Namespace) unshare(binds map[string]string) error {
	if n.Dirs == "" {
		return unix.Unshare(unix.CLONE_NEWNET)
	}
	// CLONE_FS, because the kernel refuses a new mount namespace to threads that share their root and
	// working directory.
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

// hideHost mounts the private folders over the host's. The clones stay peers of the host's state
// directory, so that mounts below them are visible on the host. No other mounts propagate to the host,
// and the state directory itself, with the other nodes, is hidden.
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

	// Private first: detaching a shared copy would unmount the original's mounts too.
	if err := unix.Mount("", StateDir, "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make the state directory private: %w", err)
	}
	if err := unix.Unmount(StateDir, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("hide the state directory: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("keep mounts from the host: %w", err)
	}
	// Shared again, among the node and its containers.
	if err := unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("share mounts with containers: %w", err)
	}
	for i, dir := range PrivateDirs {
		if err := unix.MoveMount(clones[i], "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("mount the node's %s: %w", dir, err)
		}
	}
	return nil
}

// InNetwork calls do on a thread in the network namespace, for sockets and sysctls.
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
