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

// fabricObjectsCommand is the command that makes the objects of fabrics. It is a module of its
// own, because Liqo's Go code comes with it, and runs inside that.
type fabricObjectsCommand struct {
	module, dir, binary string
}

// fabricObjectsCommand is built before the tests.
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

// runFabricObjects has the command do something in one of the clusters.
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
	ctx, cancel := context.WithTimeout(ctx, user.Patience)
	defer cancel()
	// --kubeconfig is known to all verbs, and flags come before arguments.
	arguments = append([]string{"--kubeconfig", cluster.Kubeconfig()}, arguments...)
	run := exec.CommandContext(ctx, objectsCommand.binary, arguments...)
	run.Dir = objectsCommand.module
	if out, err := run.CombinedOutput(); err != nil {
		return fmt.Errorf("fabric-objects %s: %w: %s", strings.Join(arguments, " "), err, out)
	}
	return nil
}

// removeFabrics takes back, after the last test, what several of them used.
func removeFabrics(ctx context.Context) error {
	if objectsCommand.dir == "" {
		return nil
	}
	if shared.home == nil {
		return os.RemoveAll(objectsCommand.dir)
	}
	return errors.Join(tryFabricObjects(ctx, shared.home, "liqo", "remove"), os.RemoveAll(objectsCommand.dir))
}
