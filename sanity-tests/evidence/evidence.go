// Package evidence saves what one needs in order to understand a test that failed: the end of all
// logs of the lab, and its objects. It takes what there is: without API servers the logs, which are
// files on this machine.
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
	// most is what is kept of each file: of logs the end, of lists of objects the beginning.
	most = 5 << 20
	// mostLogs bounds all logs of containers together. The newest are taken first.
	mostLogs = 200 << 20
	// limit bounds all questions to the API servers, questionLimit each of them.
	limit         = 2 * time.Minute
	questionLimit = 20 * time.Second
)

// questions are what kubectl is asked in each cluster, by the file with the answer. There are no
// Secrets among the objects.
var questions = map[string][]string{
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

// Collect writes logs and objects of a lab below a directory. What cannot be had is said in the place
// of the answer; the error is about what cannot be written.
func Collect(ctx context.Context, lab *clusters.Lab, directory string) error {
	directory, err := filepath.Abs(directory)
	if err != nil {
		return err
	}
	if below, err := filepath.Rel(machine.StateDir, directory); err == nil && filepath.IsLocal(below) {
		return fmt.Errorf("%s is in the lab's state directory, which goes with the lab: name another", directory)
	}
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return err
	}
	errs := []error{components(filepath.Join(directory, "components")), state(ctx, lab, filepath.Join(directory, "state.txt"))}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	left := int64(mostLogs)
	for _, cluster := range lab.Clusters() {
		below := filepath.Join(directory, cluster.Name())
		errs = append(errs,
			keepEnd(cluster.AuditLog(), filepath.Join(below, "audit.log")),
			backends(cluster, filepath.Join(below, "storage")),
			containers(cluster, filepath.Join(below, "containers"), &left),
			objects(ctx, cluster, below),
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

// backends copies the call logs and the fault switches of the reference drivers.
func backends(cluster *clusters.Cluster, into string) error {
	var errs []error
	for _, driver := range storage.Drivers() {
		for _, name := range []string{"calls.log", "faults.json"} {
			errs = append(errs, keepEnd(filepath.Join(driver.StateDir(cluster), name), filepath.Join(into, driver.Short+"-"+name)))
		}
	}
	return errors.Join(errs...)
}

// containers copies the logs that kubelets keep: of the containers that run, and of the last ones
// before them. They are what kubectl logs reads, and are there when no API server and no kubelet is.
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
				continue // it went with its pod
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
		*left -= min(log.info.Size(), most)
		if err := keepEnd(log.file, filepath.Join(into, log.name)); err != nil {
			return err
		}
	}
	return nil
}

// state is what `lab status` would show of processes and faults.
func state(ctx context.Context, lab *clusters.Lab, file string) error {
	var text strings.Builder
	processes, err := machine.Processes()
	if err != nil {
		fmt.Fprintln(&text, "processes:", err)
	}
	for _, process := range processes {
		life := "dead"
		if process.Alive() {
			life = "alive"
		}
		fmt.Fprintf(&text, "%-32s %s\n", process.Name, life)
	}
	for _, cluster := range lab.Clusters()[1:] {
		setting, err := cluster.Proxy().Get(ctx)
		fmt.Fprintf(&text, "proxy to %s: %s %v\n", cluster.Name(), setting, err)
	}
	return os.WriteFile(file, []byte(text.String()), 0o644)
}

// objects asks a cluster, if its API server answers at all.
func objects(ctx context.Context, cluster *clusters.Cluster, into string) error {
	if err := os.MkdirAll(into, 0o755); err != nil {
		return err
	}
	if out, err := ask(ctx, cluster, io.Discard, "get", "--raw=/readyz"); err != nil {
		text := fmt.Sprintf("the API server does not answer: %v\n%s", err, out)
		return os.WriteFile(filepath.Join(into, "no-objects.txt"), []byte(text), 0o644)
	}
	var errs []error
	for name, question := range questions {
		file, err := os.Create(filepath.Join(into, name))
		if err != nil {
			return err
		}
		if complaint, err := ask(ctx, cluster, &beginning{to: file}, question...); err != nil {
			_, err = fmt.Fprintf(file, "# kubectl %s: %v: %s\n", strings.Join(question, " "), err, complaint)
			errs = append(errs, err)
		}
		errs = append(errs, file.Close())
	}
	return errors.Join(errs...)
}

func ask(ctx context.Context, cluster *clusters.Cluster, into io.Writer, question ...string) (complaint string, err error) {
	ctx, cancel := context.WithTimeout(ctx, questionLimit)
	defer cancel()
	command := exec.CommandContext(ctx, cluster.Kubectl(), append(question, "--request-timeout="+questionLimit.String())...)
	var said strings.Builder
	command.Stdout, command.Stderr = into, &said
	command.WaitDelay = time.Second
	err = command.Run()
	return strings.TrimSpace(said.String()), err
}

// beginning passes on as much as is kept of a file, and drops the rest.
type beginning struct {
	to      io.Writer
	written int
}

func (b *beginning) Write(text []byte) (int, error) {
	kept := text[:min(len(text), most-b.written)]
	b.written += len(kept)
	if len(kept) < len(text) && len(kept) > 0 {
		kept = append(slices.Clone(kept), "\n# cut here\n"...)
	}
	_, err := b.to.Write(kept)
	return len(text), err
}

// keepEnd copies the end of a file; one that is not there is left out.
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
	if skipped := info.Size() - most; skipped > 0 {
		if _, err := source.Seek(skipped, io.SeekStart); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(target, "[%d bytes are left out]\n", skipped); err != nil {
			return err
		}
	}
	// It may grow meanwhile.
	if _, err := io.CopyN(target, source, most); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("copy %s: %w", from, err)
	}
	return target.Close()
}
