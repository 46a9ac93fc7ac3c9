package images

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// epoch is the time of every file, so that archives are reproducible.
var epoch = time.Unix(0, 0)

// WriteArchive writes the image as a docker-archive: the one format that needs
// no more than a layer, a configuration and a manifest.
func (i *Image) WriteArchive(out io.Writer) error {
	if err := i.Err(); err != nil {
		return err
	}
	layer, err := os.CreateTemp("", "layer-*.tar")
	if err != nil {
		return fmt.Errorf("image %s: %w", i.Name, err)
	}
	defer layer.Close()
	defer os.Remove(layer.Name())
	digest := sha256.New()
	if err := i.writeLayer(io.MultiWriter(layer, digest)); err != nil {
		return fmt.Errorf("image %s: %w", i.Name, err)
	}
	size, err := layer.Seek(0, io.SeekCurrent)
	if err == nil {
		_, err = layer.Seek(0, io.SeekStart)
	}
	if err != nil {
		return fmt.Errorf("image %s: %w", i.Name, err)
	}

	config, err := i.config(fmt.Sprintf("sha256:%x", digest.Sum(nil)))
	if err != nil {
		return err
	}
	configName := fmt.Sprintf("%x.json", sha256.Sum256(config))
	layerName := fmt.Sprintf("%x/layer.tar", digest.Sum(nil))
	manifest, err := json.Marshal([]map[string]any{{
		"Config": configName, "RepoTags": []string{i.Name}, "Layers": []string{layerName},
	}})
	if err != nil {
		return err
	}

	archive := tar.NewWriter(out)
	for _, part := range []struct {
		name   string
		size   int64
		source io.Reader
	}{
		{"manifest.json", int64(len(manifest)), strings.NewReader(string(manifest))},
		{configName, int64(len(config)), strings.NewReader(string(config))},
		{layerName, size, layer},
	} {
		header := &tar.Header{Name: part.name, Mode: 0o644, Size: part.size, ModTime: epoch}
		if err := archive.WriteHeader(header); err != nil {
			return fmt.Errorf("image %s: %w", i.Name, err)
		}
		if _, err := io.Copy(archive, part.source); err != nil {
			return fmt.Errorf("image %s: %w", i.Name, err)
		}
	}
	return archive.Close()
}

// config is the image's configuration as the OCI image format has it.
func (i *Image) config(layerDigest string) ([]byte, error) {
	return json.Marshal(map[string]any{
		"created":      epoch.UTC(),
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config":       map[string]any{"Entrypoint": i.Entrypoint, "Cmd": i.Cmd, "Env": i.Env},
		"rootfs":       map[string]any{"type": "layers", "diff_ids": []string{layerDigest}},
		"history":      []map[string]any{{"created": epoch.UTC()}},
	})
}

func (i *Image) writeLayer(out io.Writer) error {
	layer := tar.NewWriter(out)
	for _, name := range slices.Sorted(maps.Keys(i.files)) {
		if err := writeEntry(layer, strings.TrimPrefix(name, "/"), i.files[name]); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return layer.Close()
}

func writeEntry(layer *tar.Writer, name string, entry file) error {
	header := &tar.Header{Name: name, Mode: int64(entry.mode.Perm()), ModTime: epoch, Format: tar.FormatPAX}
	if entry.mode&fs.ModeSticky != 0 {
		header.Mode |= 0o1000
	}
	switch {
	case entry.mode.IsDir():
		header.Typeflag, header.Name = tar.TypeDir, name+"/"
		return layer.WriteHeader(header)
	case entry.mode&fs.ModeSymlink != 0:
		header.Typeflag, header.Linkname = tar.TypeSymlink, entry.link
		return layer.WriteHeader(header)
	}
	header.Typeflag = tar.TypeReg
	if entry.source == "" {
		header.Size = int64(len(entry.content))
		if err := layer.WriteHeader(header); err != nil {
			return err
		}
		_, err := layer.Write(entry.content)
		return err
	}

	source, err := os.Open(entry.source)
	if err != nil {
		return err
	}
	defer source.Close()
	info, err := source.Stat()
	if err != nil {
		return err
	}
	header.Size = info.Size()
	if err := layer.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(layer, source)
	return err
}
