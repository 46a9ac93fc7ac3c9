package remote

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/components"
	"storage.liqo.io/sanity-tests/e2e/user"
)

// fabricObjectsCommand creates objects of Liqo and Kosmos. It is a Go module of its own, because it imports
// Liqo, and runs in that folder.
type fabricObjectsCommand struct {
	module, dir, binary string
}

// These are set before the tests.
var (
	objectsCommand    fabricObjectsCommand
	errObjectsCommand error
)

func buildObjectsCommand(ctx context.Context) (built fabricObjectsCommand, err error) {
	root, err := components.ModuleRoot(ctx)
	if err != nil {
		return built, err
	}
	if built.dir, err = os.MkdirTemp("", "fabric-objects-"); err != nil {
		return built, err
	}
	built.module, built.binary = filepath.Join(root, "fabrics"), filepath.Join(built.dir, "fabric-objects")
	return built, components.GoBuild(ctx, built.module, "./cmd/fabric-objects", built.binary)
}

// runFabricObjects runs the command for a cluster.
func runFabricObjects(t *testing.T, cluster string, arguments ...string) {
	t.Helper()
	if err := tryFabricObjects(context.WithoutCancel(t.Context()), user.Cluster(t, cluster), arguments...); err != nil {
		t.Fatal(err)
	}
}

func tryFabricObjects(ctx context.Context, cluster *clusters.Cluster, arguments ...string) error {
	if errObjectsCommand != nil {
		return errObjectsCommand
	}
	ctx, cancel := context.WithTimeout(ctx, user.Timeout)
	defer cancel()
	// Flags must precede arguments.
	arguments = append([]string{"--kubeconfig", cluster.Kubeconfig()}, arguments...)
	run := exec.CommandContext(ctx, objectsCommand.binary, arguments...)
	run.Dir = objectsCommand.module
	if out, err := run.CombinedOutput(); err != nil {
		return fmt.Errorf("fabric-objects %s: %w: %s", strings.Join(arguments, " "), err, out)
	}
	return nil
}

// removeFabrics deletes, after the last test, what several tests share.
func removeFabrics(ctx context.Context) error {
	if objectsCommand.dir == "" {
		return nil
	}
	if shared.home == nil {
		return os.RemoveAll(objectsCommand.dir)
	}
	return errors.Join(tryFabricObjects(ctx, shared.home, "liqo", "remove"), os.RemoveAll(objectsCommand.dir))
}
