package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

// epoch is the time of every file, so that archives are reproducible.
var epoch = time.Unix(0, 0)

// Media types of the OCI image format.
const (
	indexType    = "application/vnd.oci.image.index.v1+json"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar"
)

// WriteArchive writes images as one archive in two formats, like `docker save`: an OCI image
// layout, which containerd imports, and, by its manifest.json, a docker-archive, which any Docker
// loads. Both refer to the same blobs.
func WriteArchive(out io.Writer, images ...*Image) error {
	archive := tar.NewWriter(out)
	index := ociIndex{SchemaVersion: 2, MediaType: indexType}
	var docker []dockerEntry
	for _, image := range images {
		written, entry, err := image.writeTo(archive)
		if err != nil {
			return fmt.Errorf("image %s: %w", image.Name, err)
		}
		index.Manifests = append(index.Manifests, written)
		docker = append(docker, entry)
	}
	for _, part := range []struct {
		name    string
		content any
	}{
		{"manifest.json", docker},
		{"index.json", index},
		{"oci-layout", map[string]string{"imageLayoutVersion": "1.0.0"}},
	} {
		content, err := json.Marshal(part.content)
		if err != nil {
			return err
		}
		if err := writePart(archive, part.name, int64(len(content)), bytes.NewReader(content)); err != nil {
			return err
		}
	}
	return archive.Close()
}

// Archive returns the archive of this image alone, as WriteArchive writes it. It is written once,
// into an unlinked file, which is deleted when the process ends.
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

// tagLength is the part of a digest that distinguishes builds.
const tagLength = 16

// NameByContent names the image repository:tag. The tag is a hash of the content, so images with
// the same name are equal.
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

// dockerEntry is an image in the manifest.json of a docker-archive.
type dockerEntry struct {
	Config   string
	RepoTags []string
	Layers   []string
}

type ociIndex struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []descriptor `json:"manifests"`
}

type ociManifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        descriptor   `json:"config"`
	Layers        []descriptor `json:"layers"`
}

// descriptor refers to a blob.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Platform    map[string]string `json:"platform,omitempty"`
}

func describe(mediaType string, content []byte) descriptor {
	return descriptor{MediaType: mediaType, Digest: fmt.Sprintf("sha256:%x", sha256.Sum256(content)), Size: int64(len(content))}
}

// path returns the path of the blob in a layout.
func (d descriptor) path() string { return "blobs/" + strings.Replace(d.Digest, ":", "/", 1) }

// writeTo writes the image's blobs: the layer first, because the others contain its digest, then
// its configuration and its manifest.
func (i *Image) writeTo(archive *tar.Writer) (descriptor, dockerEntry, error) {
	fail := func(err error) (descriptor, dockerEntry, error) { return descriptor{}, dockerEntry{}, err }
	if err := i.Err(); err != nil {
		return fail(err)
	}
	file, err := os.CreateTemp("", "layer-*.tar")
	if err != nil {
		return fail(err)
	}
	defer file.Close()
	defer os.Remove(file.Name())
	layer, contentDigest, err := i.writeBlob(file)
	if err != nil {
		return fail(err)
	}
	config, err := i.config(contentDigest)
	if err != nil {
		return fail(err)
	}
	configured := describe(configType, config)
	if i.digest != "" && "sha256:"+i.digest != configured.Digest {
		return fail(errors.New("its files have changed since its name was computed from them"))
	}
	manifest, err := json.Marshal(ociManifest{SchemaVersion: 2, MediaType: manifestType, Config: configured, Layers: []descriptor{layer}})
	if err != nil {
		return fail(err)
	}
	described := describe(manifestType, manifest)
	described.Platform = map[string]string{"os": "linux", "architecture": i.Architecture}
	described.Annotations = map[string]string{
		"io.containerd.image.name":          i.Name,
		"org.opencontainers.image.ref.name": i.Name[strings.LastIndexByte(i.Name, ':')+1:],
	}

	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return fail(err)
	}
	err = errors.Join(
		writePart(archive, layer.path(), layer.Size, file),
		writePart(archive, configured.path(), configured.Size, bytes.NewReader(config)),
		writePart(archive, described.path(), described.Size, bytes.NewReader(manifest)),
	)
	return described, dockerEntry{Config: configured.path(), RepoTags: []string{i.Name}, Layers: []string{layer.path()}}, err
}

// writeBlob writes the layer as it is stored, and returns the digest of its uncompressed content.
func (i *Image) writeBlob(out io.Writer) (blob descriptor, content string, err error) {
	stored, unpacked := sha256.New(), sha256.New()
	size := &counted{}
	blob.MediaType = layerType
	var sink io.WriteCloser = keptOpen{io.MultiWriter(out, stored, size)}
	if i.Compressed {
		blob.MediaType += "+gzip"
		sink = gzip.NewWriter(sink)
	}
	if err := errors.Join(i.writeLayer(io.MultiWriter(sink, unpacked)), sink.Close()); err != nil {
		return descriptor{}, "", err
	}
	blob.Digest, blob.Size = fmt.Sprintf("sha256:%x", stored.Sum(nil)), size.bytes
	return blob, fmt.Sprintf("%x", unpacked.Sum(nil)), nil
}

// counted is a writer that counts bytes.
type counted struct{ bytes int64 }

func (c *counted) Write(p []byte) (int, error) {
	c.bytes += int64(len(p))
	return len(p), nil
}

// keptOpen ignores Close, because the caller closes the writer.
type keptOpen struct{ io.Writer }

func (keptOpen) Close() error { return nil }

func writePart(archive *tar.Writer, name string, size int64, content io.Reader) error {
	header := &tar.Header{Name: name, Mode: 0o644, Size: size, ModTime: epoch}
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	_, err := io.Copy(archive, content)
	return err
}

// config returns the image's configuration in the OCI image format.
func (i *Image) config(layerDigest string) ([]byte, error) {
	return json.Marshal(map[string]any{
		"created":      i.Created.UTC(),
		"architecture": i.Architecture,
		"os":           "linux",
		"config":       map[string]any{"Entrypoint": i.Entrypoint, "Cmd": i.Cmd, "Env": i.Env, "User": i.User, "Labels": i.Labels},
		"rootfs":       map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + layerDigest}},
		"history":      []map[string]any{{"created": i.Created.UTC()}},
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
	if entry.mode&fs.ModeSetuid != 0 {
		header.Mode |= 0o4000
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
