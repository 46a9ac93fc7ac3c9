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

// objects is the command that makes the objects of fabrics. It is a module of its
// own, because Liqo's Go code comes with it, and runs inside that.
type objectsCommand struct {
	module, dir, binary string
}

// objects is built before the tests.
var (
	objects    objectsCommand
	errObjects error
)

func buildObjects(ctx context.Context) (built objectsCommand, err error) {
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

// fabricObjects has the command do something in one of the clusters.
func fabricObjects(t *testing.T, cluster string, arguments ...string) {
	t.Helper()
	if err := runObjects(context.WithoutCancel(t.Context()), user.Cluster(t, cluster), arguments...); err != nil {
		t.Fatal(err)
	}
}

func runObjects(ctx context.Context, cluster *clusters.Cluster, arguments ...string) error {
	if errObjects != nil {
		return errObjects
	}
	ctx, cancel := context.WithTimeout(ctx, user.Patience)
	defer cancel()
	// --kubeconfig is known to all verbs, and flags come before arguments.
	arguments = append([]string{"--kubeconfig", cluster.Kubeconfig()}, arguments...)
	run := exec.CommandContext(ctx, objects.binary, arguments...)
	run.Dir = objects.module
	if out, err := run.CombinedOutput(); err != nil {
		return fmt.Errorf("fabric-objects %s: %w: %s", strings.Join(arguments, " "), err, out)
	}
	return nil
}

// removeFabrics takes back, after the last test, what several of them used.
func removeFabrics(ctx context.Context) error {
	if objects.dir == "" {
		return nil
	}
	if shared.home == nil {
		return os.RemoveAll(objects.dir)
	}
	return errors.Join(runObjects(ctx, shared.home, "liqo", "remove"), os.RemoveAll(objects.dir))
}
