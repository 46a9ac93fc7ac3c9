// Package external runs Kubernetes' own end-to-end tests against clusters of the lab: the
// External.Storage tests of CSI drivers, for a class, and the node conformance tests.
// drivers/*.yaml has the capabilities of a class, which select the specs of External.Storage.
//
// It prepares the images of the tests (images.go), runs e2e.test under ginkgo (run.go), reads the
// report (report.go), compares two runs (compare.go) and removes what an interrupted run has left
// (sweep.go). Package components builds the programs.
package external

import (
	"context"
	"embed"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/components"
)

//go:embed drivers
var drivers embed.FS

// Suite has the programs of the tests, and a cluster with their images.
type Suite struct {
	cluster  *clusters.Cluster
	programs components.Binaries
	kubectl  string
	dir      string
}

// Prepare builds the programs unless they are in the cache, and imports the images of the tests
// into the nodes of the cluster. It writes files to dir.
func Prepare(ctx context.Context, lab *clusters.Lab, cluster *clusters.Cluster, dir string, progress io.Writer) (*Suite, error) {
	programs, err := components.BuildE2E(ctx, progress)
	if err != nil {
		return nil, err
	}
	s := &Suite{cluster: cluster, programs: programs, kubectl: lab.Binaries().Path("kubectl"), dir: dir}
	if err := os.WriteFile(s.registries(), []byte(registryList), 0o600); err != nil {
		return nil, fmt.Errorf("write the registry list of the tests' images: %w", err)
	}
	made, err := s.images(ctx)
	if err != nil {
		return nil, err
	}
	return s, cluster.Import(ctx, made...)
}

// Through returns the suite for another cluster whose pods all run on virtual nodes for the first
// one, which has the images.
func (s *Suite) Through(home *clusters.Cluster) *Suite {
	through := *s
	through.cluster = home
	return &through
}

// Drivers returns the names of the test-driver files.
func Drivers() []string {
	entries, err := drivers.ReadDir("drivers")
	if err != nil {
		panic(err) // it is embedded in the program
	}
	var names []string
	for _, entry := range entries {
		names = append(names, strings.TrimSuffix(entry.Name(), ".yaml"))
	}
	return names
}

// writeDriver writes a test-driver file for e2e.test.
func (s *Suite) writeDriver(name string) (path string, err error) {
	content, err := drivers.ReadFile("drivers/" + name + ".yaml")
	if err != nil {
		return "", fmt.Errorf("find the test-driver file: %w", err)
	}
	path = filepath.Join(s.dir, name+".yaml")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return "", fmt.Errorf("write the test-driver file: %w", err)
	}
	return path, nil
}
