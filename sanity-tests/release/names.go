package release

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"storage.liqo.io/sanity-tests/components"
)

// Release describes a release.
type Release struct {
	// Root is the repository, Dist the folder for all created files.
	Root, Dist string
	// Version is the chart's appVersion, and ImageName the image that the chart names.
	Version, ImageName string
	// Architectures are those to build, if this machine can; it can always build its own.
	Architectures []string
	// Time is the time of the commit, so that the same commit results in the same files.
	Time time.Time
}

// Read returns the release of the repository that contains the working directory.
func Read(ctx context.Context) (*Release, error) {
	module, err := components.ModuleRoot(ctx)
	if err != nil {
		return nil, err
	}
	release := &Release{Root: filepath.Dir(module), Architectures: architectures(), Time: time.Unix(0, 0)}
	release.Dist = filepath.Join(release.Root, "dist")
	var chart struct{ AppVersion string }
	var values struct{ Image struct{ Repository string } }
	for file, into := range map[string]any{"Chart.yaml": &chart, "values.yaml": &values} {
		text, err := os.ReadFile(filepath.Join(release.chart(), file))
		if err != nil {
			return nil, err
		}
		if err := yaml.Unmarshal(text, into); err != nil {
			return nil, fmt.Errorf("read %s of the chart: %w", file, err)
		}
	}
	release.Version = chart.AppVersion
	release.ImageName = values.Image.Repository + ":" + chart.AppVersion
	// An archive of the sources has no commit.
	if out, err := exec.CommandContext(ctx, "git", "-C", release.Root, "log", "-1", "--format=%ct").Output(); err == nil {
		if seconds, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64); err == nil {
			release.Time = time.Unix(seconds, 0)
		}
	}
	return release, os.MkdirAll(release.Dist, 0o755)
}

// architectures returns the architectures of releases, this machine's first, so that errors show
// early.
func architectures() []string {
	all := []string{runtime.GOARCH}
	for _, other := range []string{"amd64", "arm64"} {
		if other != runtime.GOARCH {
			all = append(all, other)
		}
	}
	return all
}

func (r *Release) chart() string { return filepath.Join(r.Root, "deploy", "chart", "liqo-csi") }

// ImageArchive returns the path of the image of an architecture.
func (r *Release) ImageArchive(architecture string) string {
	return filepath.Join(r.Dist, fmt.Sprintf("liqo-csi-image-%s-linux-%s.tar", r.Version, architecture))
}
