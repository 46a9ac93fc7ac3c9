package sanity

import (
	"context"
	"errors"
	"flag"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	"github.com/onsi/gomega"

	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/driver"
)

// setups are the kinds of real storage. The real class of each is accessible from all nodes,
// because csi-sanity's volumes have no node. (None requires attachment: the lab's driver with
// attachments requires a token of the pod's service account, and csi-sanity has no pod.)
var setups = []struct{ name, accessType, realClass string }{
	{"directories", "mount", "reference"},
	{"ext4", "mount", "reference-ext4"},
	{"block", "block", "reference"},
}

// only selects setups: -run would only leave out their results, and still run the specs.
var only = flag.String("setup", "", "names of the set-ups to run, with commas between them, instead of all")

func isSelected(setup string) bool {
	return *only == "" || slices.Contains(strings.Split(*only, ","), setup)
}

func TestDriver(t *testing.T) {
	found, err := find(t.Context(), t.TempDir())
	if errors.Is(err, clusters.ErrNoLab) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	gomega.RegisterFailHandler(ginkgo.Fail)
	for _, setup := range setups {
		if !isSelected(setup.name) {
			continue
		}
		config := sanity.NewTestConfig()
		config.Address = "unix://" + found.nodeSocket()
		config.ControllerAddress = "unix://" + found.controller
		config.TestVolumeSize = 1 << 30
		config.TestVolumeAccessType = setup.accessType
		config.TestVolumeParameters = map[string]string{"realStorageClass": setup.realClass}
		config.TestVolumeMutableParameters = map[string]string{driver.RealAttributesClass: "reference-gold"}
		t.Cleanup(found.paths(&config, setup.name))
		ginkgo.Describe(setup.name, ginkgo.Ordered, ginkgo.ContinueOnFailure, func() {
			ginkgo.AfterAll(func(ctx context.Context) {
				gomega.Eventually(found.leftovers).WithContext(ctx).WithTimeout(time.Minute).Should(gomega.BeEmpty(),
					"VIOLATED: things left behind")
			})
			sanity.GinkgoTest(&config)
		})
	}
	var report types.Report
	ginkgo.ReportAfterSuite("keep the report", func(final types.Report) { report = final })
	suite, reporter := ginkgo.GinkgoConfiguration()
	ginkgo.RunSpecs(t, "csi-sanity against the driver in the lab", suite, reporter)
	reportSpecs(t, report)
}

// reportSpecs reports each spec as a subtest of its setup, so that it is counted, and their sum.
func reportSpecs(t *testing.T, report types.Report) {
	for _, setup := range setups {
		if !isSelected(setup.name) {
			continue
		}
		t.Run(setup.name, func(t *testing.T) { reportSetup(t, setup.name, report) })
	}
}

func reportSetup(t *testing.T, setup string, report types.Report) {
	var passed, failed, skipped int
	for _, spec := range report.SpecReports {
		if spec.LeafNodeType != types.NodeTypeIt || spec.ContainerHierarchyTexts[0] != setup {
			continue
		}
		text := strings.TrimPrefix(spec.FullText(), setup+" ")
		t.Run(strings.ReplaceAll(text, "/", "|"), func(t *testing.T) {
			switch {
			case spec.State.Is(types.SpecStateFailureStates):
				failed++
				t.Errorf("%s\n%s", spec.Failure.Location, spec.Failure.Message)
			case spec.State.Is(types.SpecStatePending):
				skipped++
				t.Skip("switched off by csi-test itself")
			case spec.State.Is(types.SpecStateSkipped):
				skipped++
				t.Skip(spec.Failure.Message)
			default:
				passed++
			}
		})
	}
	t.Logf("csi-sanity: %d specs passed, %d failed, %d skipped", passed, failed, skipped)
}
