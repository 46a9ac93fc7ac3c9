package release

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/driver"
)

// Everything creates all files of a release, and returns its images. It reports and skips what this
// machine cannot build for another architecture.
func (r *Release) Everything(ctx context.Context, progress io.Writer) ([]*BuiltImage, error) {
	if err := errors.Join(os.RemoveAll(r.Dist), os.MkdirAll(r.Dist, 0o755)); err != nil {
		return nil, err
	}
	var built []*BuiltImage
	for _, architecture := range r.Architectures {
		if architecture != runtime.GOARCH {
			if err := driver.CanCompileFor(ctx, architecture); err != nil {
				fmt.Fprintf(progress, "nothing for %s is built: %v\n", architecture, err)
				continue
			}
		}
		fmt.Fprintf(progress, "building the driver for %s, which takes 5 to 30 minutes the first time\n", architecture)
		binary, err := driver.CompileReleaseFor(ctx, architecture)
		if err != nil {
			return nil, err
		}
		image, err := r.Image(ctx, architecture, binary)
		if err != nil {
			return nil, err
		}
		if err := r.program(architecture, binary); err != nil {
			return nil, err
		}
		fmt.Fprintf(progress, "built image and program for %s\n", architecture)
		built = append(built, image)
	}
	sbom, err := r.SBOM(ctx, built)
	if err != nil {
		return nil, err
	}
	folder, err := os.MkdirTemp("", "chart-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder)
	helm, err := r.helm(ctx, folder)
	if err != nil {
		return nil, err
	}
	listed, err := r.imageList(ctx, helm)
	if err != nil {
		return nil, err
	}
	manifests, err := helm.Manifests(ctx)
	if err != nil {
		return nil, err
	}
	return built, errors.Join(
		helm.Package(ctx, r.Dist),
		r.write("liqo-csi-"+r.Version+".cdx.json", sbom),
		r.write("liqo-csi-"+r.Version+"-images.txt", listed),
		r.write("liqo-csi-"+r.Version+".yaml", manifests),
		r.sums(),
	)
}

func (r *Release) write(name string, content []byte) error {
	return os.WriteFile(filepath.Join(r.Dist, name), content, 0o644)
}

// program writes the archive with the program, which is also the command-line tool.
func (r *Release) program(architecture, binary string) (err error) {
	name := fmt.Sprintf("liqo-csi-%s-linux-%s", r.Version, architecture)
	file, err := os.Create(filepath.Join(r.Dist, name+".tar.gz"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	compressed := gzip.NewWriter(file)
	archive := tar.NewWriter(compressed)
	for _, of := range []struct {
		path string
		mode int64
	}{{binary, 0o755}, {filepath.Join(r.Root, "LICENSE"), 0o644}, {filepath.Join(r.Root, "README.md"), 0o644}} {
		content, err := os.ReadFile(of.path)
		if err != nil {
			return err
		}
		inside := filepath.Base(of.path)
		if of.path == binary {
			inside = program
		}
		header := &tar.Header{Name: name + "/" + inside, Mode: of.mode, Size: int64(len(content)), ModTime: r.Time}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(content); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), compressed.Close())
}

var imageValues = regexp.MustCompile(`(?m)^(image:\n  repository: ).+\n((?:  #.*\n)*  tag: ).+$`)

// helm copies the chart into this folder, sets the image of the release in it, and returns Helm for
// it.
func (r *Release) helm(ctx context.Context, folder string) (*chart.Helm, error) {
	folder = filepath.Join(folder, filepath.Base(r.chart())) // helm package requires this name
	if err := os.CopyFS(folder, os.DirFS(r.chart())); err != nil {
		return nil, err
	}
	file := filepath.Join(folder, "values.yaml")
	values, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	colon := strings.LastIndexByte(r.ImageName, ':')
	repository, tag := r.ImageName[:colon], r.ImageName[colon+1:]
	if tag == r.Version {
		tag = "" // the chart's own
	}
	if len(imageValues.FindAll(values, -1)) != 1 {
		return nil, fmt.Errorf("%s does not begin with image.repository and image.tag as expected", file)
	}
	values = imageValues.ReplaceAll(values, fmt.Appendf(nil, "${1}%s\n${2}%q", repository, tag))
	if err := os.WriteFile(file, values, 0o644); err != nil {
		return nil, err
	}
	return chart.NewFor(ctx, folder)
}

var imageLine = regexp.MustCompile(`(?m)^ *(?:- )?image: (\S+)$`)

// imageList writes the names of all images that the chart can run, for users who mirror them.
func (r *Release) imageList(ctx context.Context, helm *chart.Helm) ([]byte, error) {
	all := chart.Values{
		"fabric":     chart.Values{"enabled": true},
		"controller": chart.Values{"snapshotter": chart.Values{"enabled": true}},
	}
	rendered, err := helm.Render(ctx, chart.Release, chart.Namespace, all)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, found := range imageLine.FindAllSubmatch(rendered, -1) {
		names = append(names, string(found[1]))
	}
	slices.Sort(names)
	return []byte(strings.Join(slices.Compact(names), "\n") + "\n"), nil
}

// sums writes the checksums of all other files, for sha256sum --check.
func (r *Release) sums() error {
	entries, err := os.ReadDir(r.Dist) // sorted
	if err != nil {
		return err
	}
	var sums bytes.Buffer
	for _, entry := range entries {
		content, err := os.ReadFile(filepath.Join(r.Dist, entry.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(content), entry.Name())
	}
	return r.write("SHA256SUMS", sums.Bytes())
}
