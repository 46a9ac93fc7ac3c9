// Package evidence saves logs and objects of the lab after a failed test. The logs are files on this
// machine, so that they are saved without API servers too.
package evidence

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/machine"
	"storage.liqo.io/sanity-tests/storage"
)

const (
	// maxFile is the maximum size: the end of logs, the beginning of lists of objects.
	maxFile = 5 << 20
	// maxLogs is the maximum of all container logs together. The newest are saved first.
	maxLogs = 200 << 20
	// kubectlTimeout is that of all kubectl commands, commandTimeout that of each.
	kubectlTimeout = 2 * time.Minute
	commandTimeout = 20 * time.Second
)

// commands are kubectl's arguments by the file with their output. They do not read Secrets.
var commands = map[string][]string{
	"events.txt":                {"get", "events", "--all-namespaces", "--output=wide", "--sort-by=.metadata.creationTimestamp"},
	"pods.txt":                  {"get", "pods", "--all-namespaces", "--output=wide"},
	"pods.yaml":                 {"get", "pods", "--all-namespaces", "--output=yaml"},
	"nodes.yaml":                {"get", "nodes,csinodes", "--output=yaml"},
	"namespaces.yaml":           {"get", "namespaces", "--output=yaml"},
	"claims.yaml":               {"get", "persistentvolumeclaims", "--all-namespaces", "--output=yaml"},
	"volumes.yaml":              {"get", "persistentvolumes,volumeattachments,storageclasses", "--output=yaml"},
	"snapshots.yaml":            {"get", "volumesnapshots,volumesnapshotcontents", "--all-namespaces", "--output=yaml"},
	"remoteclusters.yaml":       {"get", "remoteclusters", "--output=yaml"},
	"volumemoves.yaml":          {"get", "volumemoves", "--all-namespaces", "--output=yaml"},
	"namespaceoffloadings.yaml": {"get", "namespaceoffloadings", "--all-namespaces", "--output=yaml"},
}

// Collect writes logs and objects of a lab to a directory. An error of kubectl is written to the file
// of its output; the returned error is about writing.
func Collect(ctx context.Context, lab *clusters.Lab, directory string) error {
	directory, err := filepath.Abs(directory)
	if err != nil {
		return err
	}
	if below, err := filepath.Rel(machine.StateDir, directory); err == nil && filepath.IsLocal(below) {
		return fmt.Errorf("%s is in the lab's state directory, which is deleted with the lab: use another", directory)
	}
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return err
	}
	errs := []error{components(filepath.Join(directory, "components")), state(ctx, lab, filepath.Join(directory, "state.txt"))}
	ctx, cancel := context.WithTimeout(ctx, kubectlTimeout)
	defer cancel()
	left := int64(maxLogs)
	for _, cluster := range lab.Clusters() {
		below := filepath.Join(directory, cluster.Name())
		errs = append(errs,
			keepEnd(cluster.AuditLog(), filepath.Join(below, "audit.log")),
			backends(cluster, filepath.Join(below, "storage")),
			containers(cluster, filepath.Join(below, "containers"), &left),
			saveObjects(ctx, cluster, below),
		)
	}
	return errors.Join(errs...)
}

// components copies the logs of the lab's processes.
func components(into string) error {
	from := machine.Path("logs")
	return filepath.WalkDir(from, func(file string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || entry.IsDir() {
			return err
		}
		below, err := filepath.Rel(from, file)
		if err != nil {
			return err
		}
		return keepEnd(file, filepath.Join(into, below))
	})
}

// backends copies the call logs and the faults of the reference drivers.
func backends(cluster *clusters.Cluster, into string) error {
	var errs []error
	for _, driver := range storage.Drivers() {
		for _, name := range []string{"calls.log", "faults.json"} {
			errs = append(errs, keepEnd(filepath.Join(driver.StateDir(cluster), name), filepath.Join(into, driver.Short+"-"+name)))
		}
	}
	return errors.Join(errs...)
}

// containers copies the logs of current and previous containers, from the files of kubelets.
func containers(cluster *clusters.Cluster, into string, left *int64) error {
	type log struct {
		file, name string
		info       fs.FileInfo
	}
	var logs []log
	for _, node := range cluster.Nodes() {
		from := node.HostPath("/var/log/pods")
		files, err := filepath.Glob(filepath.Join(from, "*", "*", "*.log"))
		if err != nil {
			return err
		}
		for _, file := range files {
			info, err := os.Stat(file)
			if err != nil {
				continue // deleted with its pod
			}
			below, err := filepath.Rel(from, file)
			if err != nil {
				return err
			}
			// NAMESPACE_POD_UID/CONTAINER/RESTARTS.log
			container, name := filepath.Split(below)
			logs = append(logs, log{file, filepath.Join(node.Name, filepath.Clean(container)+"-"+name), info})
		}
	}
	slices.SortFunc(logs, func(a, b log) int { return b.info.ModTime().Compare(a.info.ModTime()) })
	for _, log := range logs {
		if *left <= 0 {
			return nil
		}
		*left -= min(log.info.Size(), maxFile)
		if err := keepEnd(log.file, filepath.Join(into, log.name)); err != nil {
			return err
		}
	}
	return nil
}

// state writes the processes and faults like `lab status`.
func state(ctx context.Context, lab *clusters.Lab, file string) error {
	var text strings.Builder
	processes, err := machine.Processes()
	if err != nil {
		fmt.Fprintln(&text, "processes:", err)
	}
	for _, process := range processes {
		status := "dead"
		if process.Alive() {
			status = "alive"
		}
		fmt.Fprintf(&text, "%-32s %s\n", process.Name, status)
	}
	for _, cluster := range lab.Clusters()[1:] {
		setting, err := cluster.Proxy().Get(ctx)
		fmt.Fprintf(&text, "proxy to %s: %s %v\n", cluster.Name(), setting, err)
	}
	return os.WriteFile(file, []byte(text.String()), 0o644)
}

// saveObjects runs kubectl in a cluster, if its API server is ready.
func saveObjects(ctx context.Context, cluster *clusters.Cluster, into string) error {
	if err := os.MkdirAll(into, 0o755); err != nil {
		return err
	}
	if out, err := kubectl(ctx, cluster, io.Discard, "get", "--raw=/readyz"); err != nil {
		text := fmt.Sprintf("the API server does not answer: %v\n%s", err, out)
		return os.WriteFile(filepath.Join(into, "no-objects.txt"), []byte(text), 0o644)
	}
	var errs []error
	for name, args := range commands {
		file, err := os.Create(filepath.Join(into, name))
		if err != nil {
			return err
		}
		if stderr, err := kubectl(ctx, cluster, &truncated{to: file}, args...); err != nil {
			_, err = fmt.Fprintf(file, "# kubectl %s: %v: %s\n", strings.Join(args, " "), err, stderr)
			errs = append(errs, err)
		}
		errs = append(errs, file.Close())
	}
	return errors.Join(errs...)
}

func kubectl(ctx context.Context, cluster *clusters.Cluster, into io.Writer, args ...string) (stderr string, err error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	command := exec.CommandContext(ctx, cluster.Kubectl(), append(args, "--request-timeout="+commandTimeout.String())...)
	var errOut strings.Builder
	command.Stdout, command.Stderr = into, &errOut
	command.WaitDelay = time.Second
	err = command.Run()
	return strings.TrimSpace(errOut.String()), err
}

// truncated is a writer that drops everything after maxFile.
type truncated struct {
	to      io.Writer
	written int
}

func (b *truncated) Write(text []byte) (int, error) {
	kept := text[:min(len(text), maxFile-b.written)]
	b.written += len(kept)
	if len(kept) < len(text) && len(kept) > 0 {
		kept = append(slices.Clone(kept), "\n# cut here\n"...)
	}
	_, err := b.to.Write(kept)
	return len(text), err
}

// keepEnd copies the end of a file, if it exists.
func keepEnd(from, into string) error {
	source, err := os.Open(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer source.Close()
	info, err := source.Stat()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(into), 0o755); err != nil {
		return err
	}
	target, err := os.Create(into)
	if err != nil {
		return err
	}
	defer target.Close()
	if skipped := info.Size() - maxFile; skipped > 0 {
		if _, err := source.Seek(skipped, io.SeekStart); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(target, "[%d bytes are left out]\n", skipped); err != nil {
			return err
		}
	}
	// The file may be growing.
	if _, err := io.CopyN(target, source, maxFile); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("copy %s: %w", from, err)
	}
	return target.Close()
}
