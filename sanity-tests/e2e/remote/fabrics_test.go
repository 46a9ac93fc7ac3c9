package remote

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/components"
	"storage.liqo.io/sanity-tests/e2e/user"
)

// objects is the command that makes the objects of fabrics. It is a module of its
// own, because Liqo's Go code comes with it, and runs inside that.
var objects struct {
	once                sync.Once
	module, dir, binary string
	err                 error
}

func buildObjects(ctx context.Context) error {
	root, err := components.ModuleRoot(ctx)
	if err != nil {
		return err
	}
	if objects.dir, err = os.MkdirTemp("", "fabric-objects-"); err != nil {
		return err
	}
	objects.module, objects.binary = filepath.Join(root, "fabrics"), filepath.Join(objects.dir, "fabric-objects")
	return components.GoBuild(ctx, objects.module, "./cmd/fabric-objects", objects.binary)
}

// fabricObjects has the command do something in one of the clusters.
func fabricObjects(t *testing.T, cluster string, arguments ...string) {
	t.Helper()
	if err := runObjects(context.WithoutCancel(t.Context()), user.Cluster(t, cluster), arguments...); err != nil {
		t.Fatal(err)
	}
}

func runObjects(ctx context.Context, cluster *clusters.Cluster, arguments ...string) error {
	objects.once.Do(func() { objects.err = buildObjects(ctx) })
	if objects.err != nil {
		return objects.err
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
	return errors.Join(runObjects(ctx, shared.home, "liqo", "remove"), os.RemoveAll(objects.dir))
}
