// Package sanity runs csi-sanity against the reference driver, once for each configuration of the
// driver. It needs root, for mounts and loop devices.
package sanity

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	"github.com/onsi/gomega"

	"storage.liqo.io/sanity-tests/reference/driver"
	"storage.liqo.io/sanity-tests/reference/internal/mounttest"
)

const gibibyte = int64(1) << 30

type setup struct {
	name       string
	config     driver.Config
	accessType string
	parameters map[string]string
}

var setups = []setup{
	{name: "directories, not attached", accessType: "mount"},
	{name: "ext4 images, attached", accessType: "mount", config: driver.Config{Attach: true, MaxVolumesPerNode: 3}, parameters: map[string]string{"backing": "ext4"}},
	{name: "xfs images, not attached, with mount group", accessType: "mount", config: driver.Config{VolumeMountGroup: true}, parameters: map[string]string{"backing": "xfs"}},
	{name: "block devices, attached", accessType: "block", config: driver.Config{Attach: true}},
	{name: "block devices, not attached", accessType: "block"},
	{name: "directories on one node, limited capacity, secrets", accessType: "mount",
		config:     driver.Config{NodeLocal: true, CapacityBytes: 100 * gibibyte},
		parameters: map[string]string{"requireStageSecret": "stage", "requirePublishSecret": "publish"}},
}

const secrets = `
NodeStageVolumeSecret: {password: stage}
NodePublishVolumeSecret: {password: publish}
`

func TestMain(m *testing.M) { mounttest.Main(m) }

func TestSanity(t *testing.T) {
	mounttest.NeedRoot(t)
	gomega.RegisterFailHandler(ginkgo.Fail)
	base := t.TempDir()
	for number, setup := range setups {
		dir := filepath.Join(base, fmt.Sprint(number))
		config := sanityConfig(t, dir, setup)
		ginkgo.Describe(setup.name, ginkgo.Ordered, func() {
			serve(setup, dir)
			sanity.GinkgoTest(&config)
		})
	}
	counts := map[string]map[types.SpecState]int{}
	ginkgo.ReportAfterEach(func(spec ginkgo.SpecReport) {
		name := spec.ContainerHierarchyTexts[0]
		if counts[name] == nil {
			counts[name] = map[types.SpecState]int{}
		}
		counts[name][spec.State]++
	})
	suite, reporter := ginkgo.GinkgoConfiguration()
	ginkgo.RunSpecs(t, "csi-sanity against the reference driver", suite, reporter)

	// One line for each configuration; details of failures are in the suite's output.
	for _, setup := range setups {
		t.Run(setup.name, func(t *testing.T) {
			passed, skipped := counts[setup.name][types.SpecStatePassed], counts[setup.name][types.SpecStateSkipped]
			t.Logf("%d specs passed, %d need capabilities that are not advertised", passed, skipped)
			for state, count := range counts[setup.name] {
				if state.Is(types.SpecStateFailureStates) {
					t.Errorf("%d specs %s", count, state)
				}
			}
			if passed == 0 {
				t.Error("no spec passed")
			}
		})
	}
}

func sanityConfig(t *testing.T, dir string, setup setup) sanity.TestConfig {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	secretsFile := filepath.Join(dir, "secrets.yaml")
	if err := os.WriteFile(secretsFile, []byte(secrets), 0o600); err != nil {
		t.Fatal(err)
	}
	config := sanity.NewTestConfig()
	config.Address = "unix://" + filepath.Join(dir, "csi.sock")
	config.TargetPath = filepath.Join(dir, "targets")
	config.StagingPath = filepath.Join(dir, "staging")
	config.SecretsFile = secretsFile
	config.TestVolumeSize = gibibyte
	config.TestVolumeAccessType = setup.accessType
	config.TestVolumeParameters = setup.parameters
	config.TestVolumeMutableParameters = map[string]string{"iops": "1000"}
	config.TestNodeVolumeAttachLimit = setup.config.MaxVolumesPerNode > 0
	return config
}

// serve runs the driver during the specs of one configuration, and checks afterwards that nothing
// is left.
func serve(setup setup, dir string) {
	var ended chan error
	var stop context.CancelFunc
	ginkgo.BeforeAll(func() {
		config := setup.config
		config.Name = "reference.storage.test"
		config.Mode = driver.AllMode
		config.NodeID = "sanity-node"
		config.Endpoint = filepath.Join(dir, "csi.sock")
		config.StateDir = filepath.Join(dir, "state")
		service, err := driver.New(config)
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		listener, err := service.Listen()
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		var ctx context.Context
		ctx, stop = context.WithCancel(context.Background())
		ended = make(chan error, 1)
		go func() { ended <- service.Serve(ctx, listener) }()
	})
	ginkgo.AfterAll(func() {
		stop()
		gomega.Eventually(ended).WithTimeout(30 * time.Second).Should(gomega.Receive(gomega.BeNil()))
		gomega.Expect(leftovers(dir)).To(gomega.BeEmpty(), "things the driver left behind")
	})
}

// leftovers lists mounts, loop devices and records below dir.
func leftovers(dir string) ([]string, error) {
	var found []string
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, dir) {
			found = append(found, "mount "+strings.Fields(line)[4])
		}
	}
	loops, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	for _, loop := range loops {
		if image, err := os.ReadFile(loop); err == nil && strings.Contains(string(image), dir) {
			found = append(found, "loop device of "+strings.TrimSpace(string(image)))
		}
	}
	for _, kind := range []string{"volumes", "snapshots", "data"} {
		err := filepath.WalkDir(filepath.Join(dir, "state", kind), func(path string, entry fs.DirEntry, err error) error {
			if err == nil && (kind == "data" && filepath.Base(path) != "data" || !entry.IsDir()) {
				found = append(found, path)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}
