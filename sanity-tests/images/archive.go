package images

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
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

// WriteArchive writes images as one docker-archive: the format that needs no
// more than a layer and a configuration for each, and a manifest.
func WriteArchive(out io.Writer, images ...*Image) error {
	archive := tar.NewWriter(out)
	var manifest []manifestEntry
	for _, image := range images {
		entry, err := image.writeTo(archive)
		if err != nil {
			return fmt.Errorf("image %s: %w", image.Name, err)
		}
		manifest = append(manifest, entry)
	}
	content, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	if err := writePart(archive, "manifest.json", int64(len(content)), bytes.NewReader(content)); err != nil {
		return err
	}
	return archive.Close()
}

// Archive is the image alone as WriteArchive writes it. It is written once, into a file that has no
// name any more and so is gone with the process.
func (i *Image) Archive() (io.Reader, error) {
	i.archive.Lock()
	defer i.archive.Unlock()
	if i.archive.file == nil {
		file, err := os.CreateTemp("", "image-*.tar")
		if err != nil {
			return nil, fmt.Errorf("write the archive of image %s: %w", i.Name, err)
		}
		if err := errors.Join(os.Remove(file.Name()), WriteArchive(file, i)); err != nil {
			return nil, errors.Join(err, file.Close())
		}
		i.archive.file = file
	}
	info, err := i.archive.file.Stat()
	if err != nil {
		return nil, err
	}
	return io.NewSectionReader(i.archive.file, 0, info.Size()), nil
}

// tagLength is enough of a digest to tell builds apart.
const tagLength = 16

// NameByContent names the image repository:tag, with a tag that follows from what is in it: whoever
// has an image of that name has this one.
func (i *Image) NameByContent(repository string) error {
	if err := i.Err(); err != nil {
		return err
	}
	layer := sha256.New()
	if err := i.writeLayer(layer); err != nil {
		return fmt.Errorf("image %s: %w", repository, err)
	}
	config, err := i.config(fmt.Sprintf("%x", layer.Sum(nil)))
	if err != nil {
		return err
	}
	i.digest = fmt.Sprintf("%x", sha256.Sum256(config))
	i.Name = repository + ":" + i.digest[:tagLength]
	return nil
}

type manifestEntry struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// writeTo writes the image's layer, which has to be made first because its
// digest names it, and its configuration.
func (i *Image) writeTo(archive *tar.Writer) (manifestEntry, error) {
	if err := i.Err(); err != nil {
		return manifestEntry{}, err
	}
	layer, err := os.CreateTemp("", "layer-*.tar")
	if err != nil {
		return manifestEntry{}, err
	}
	defer layer.Close()
	defer os.Remove(layer.Name())
	hash := sha256.New()
	if err := i.writeLayer(io.MultiWriter(layer, hash)); err != nil {
		return manifestEntry{}, err
	}
	size, err := layer.Seek(0, io.SeekCurrent)
	if err != nil {
		return manifestEntry{}, err
	}
	if _, err := layer.Seek(0, io.SeekStart); err != nil {
		return manifestEntry{}, err
	}

	digest := fmt.Sprintf("%x", hash.Sum(nil))
	config, err := i.config(digest)
	if err != nil {
		return manifestEntry{}, err
	}
	id := fmt.Sprintf("%x", sha256.Sum256(config))
	if i.digest != "" && i.digest != id {
		return manifestEntry{}, errors.New("its files have changed since it was named after them")
	}
	entry := manifestEntry{
		Config:   id + ".json",
		RepoTags: []string{i.Name},
		Layers:   []string{digest + "/layer.tar"},
	}
	if err := writePart(archive, entry.Config, int64(len(config)), bytes.NewReader(config)); err != nil {
		return manifestEntry{}, err
	}
	return entry, writePart(archive, entry.Layers[0], size, layer)
}

func writePart(archive *tar.Writer, name string, size int64, content io.Reader) error {
	header := &tar.Header{Name: name, Mode: 0o644, Size: size, ModTime: epoch}
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	_, err := io.Copy(archive, content)
	return err
}

// config is the image's configuration as the OCI image format has it.
func (i *Image) config(layerDigest string) ([]byte, error) {
	return json.Marshal(map[string]any{
		"created":      epoch.UTC(),
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config":       map[string]any{"Entrypoint": i.Entrypoint, "Cmd": i.Cmd, "Env": i.Env},
		"rootfs":       map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + layerDigest}},
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
