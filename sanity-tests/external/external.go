// Package external runs Kubernetes' own end-to-end tests against clusters of the lab: the
// External.Storage tests, which any CSI driver can be put through, against a class, and those
// of the conformance of nodes. What a class is said to be capable of, and so which specs of
// External.Storage apply, is in drivers/*.yaml.
//
// It prepares the images that the tests run (images.go), runs e2e.test under ginkgo
// (run.go), reads what came of it (report.go), compares two runs (compare.go) and removes what
// an interrupted run left behind (sweep.go). The programs come from package components.
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

// Suite is the programs of the tests and a cluster that has their images.
type Suite struct {
	cluster  *clusters.Cluster
	programs components.Binaries
	kubectl  string
	dir      string
}

// Prepare builds the programs unless they are in the cache, and puts the images that
// the tests run into the nodes of the cluster. What is written goes into dir.
func Prepare(ctx context.Context, lab *clusters.Lab, cluster *clusters.Cluster, dir string, progress io.Writer) (*Suite, error) {
	programs, err := components.BuildE2E(ctx, progress)
	if err != nil {
		return nil, err
	}
	s := &Suite{cluster: cluster, programs: programs, kubectl: lab.Binaries().Path("kubectl"), dir: dir}
	if err := os.WriteFile(s.registries(), []byte(registryList), 0o600); err != nil {
		return nil, fmt.Errorf("name the registry of the tests' images: %w", err)
	}
	made, err := s.images(ctx)
	if err != nil {
		return nil, err
	}
	return s, cluster.Import(ctx, made...)
}

// Through is the suite over another cluster, where nobody runs its pods but virtual nodes in
// whose place the first one is: the images are there.
func (s *Suite) Through(home *clusters.Cluster) *Suite {
	through := *s
	through.cluster = home
	return &through
}

// Drivers are the names of the test-driver files.
func Drivers() []string {
	entries, err := drivers.ReadDir("drivers")
	if err != nil {
		panic(err) // it is part of the program
	}
	var names []string
	for _, entry := range entries {
		names = append(names, strings.TrimSuffix(entry.Name(), ".yaml"))
	}
	return names
}

// writeDriver puts a test-driver file where e2e.test can read it.
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
