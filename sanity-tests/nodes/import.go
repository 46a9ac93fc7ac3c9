package nodes

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"storage.liqo.io/sanity-tests/images"
	"storage.liqo.io/sanity-tests/machine"
)

// Import imports images into the containerd of each node, so that pods need not pull them. It
// replaces images of the same name. Layers are unpacked when a pod first needs them.
func Import(ctx context.Context, bin string, targets []*Node, imported ...*images.Image) error {
	archive, err := writeArchive(imported)
	if err != nil {
		return err
	}
	defer os.Remove(archive)
	return each(targets, func(node *Node) error {
		_, err := node.ctr(ctx, bin, "images", "import", "--no-unpack", archive)
		return err
	})
}

// ImportMissing imports an image, whose name is a hash of its content, into those nodes that do not
// have it, and returns their number.
func ImportMissing(ctx context.Context, bin string, targets []*Node, image *images.Image) (imported int, err error) {
	targets = slices.DeleteFunc(slices.Clone(targets), func(node *Node) bool {
		return HasImages(ctx, bin, []*Node{node}, image.Name)
	})
	err = each(targets, func(node *Node) error {
		archive, err := image.Archive()
		if err != nil {
			return err
		}
		_, err = node.ctrWithInput(ctx, bin, archive, "images", "import", "--no-unpack", "-")
		return err
	})
	return len(targets), err
}

// RemoveOtherTags removes the images of the same repository with other tags from all nodes. Their
// containers continue, but cannot be restarted. In the lab, kubelet removes no images.
func RemoveOtherTags(ctx context.Context, bin string, targets []*Node, image string) error {
	return each(targets, func(node *Node) error {
		listed, err := node.ctr(ctx, bin, "images", "ls")
		if err != nil {
			return err
		}
		if others := otherTags(listed, image); len(others) > 0 {
			_, err = node.ctr(ctx, bin, append([]string{"images", "rm"}, others...)...)
		}
		return err
	})
}

// otherTags returns, from the output of `ctr images ls`, the other tags of an image's repository,
// and the names by digest under which the CRI plugin has the same images: each of them keeps the
// content. If the image has the same content as another tag, its name by digest stays.
func otherTags(listed, image string) (names []string) {
	repository := image[:strings.LastIndexByte(image, ':')+1]
	digests, kept := map[string]bool{}, ""
	lines := strings.Split(listed, "\n")
	each := func(do func(name, digest string)) {
		for _, line := range lines {
			if columns := strings.Fields(line); len(columns) > 2 {
				do(columns[0], columns[2])
			}
		}
	}
	each(func(name, digest string) {
		if name == image {
			kept = digest
		} else if strings.HasPrefix(name, repository) {
			digests[digest] = true
		}
	})
	each(func(name, digest string) {
		if digests[digest] && (digest != kept || strings.HasPrefix(name, repository) && name != image) {
			names = append(names, name)
		}
	})
	return names
}

// Images returns the names of the node's images.
func (n *Node) Images(ctx context.Context, bin string) ([]string, error) {
	out, err := n.ctr(ctx, bin, "images", "ls", "-q")
	return strings.Fields(out), err
}

// HasImages reports whether every node has all the images.
func HasImages(ctx context.Context, bin string, targets []*Node, names ...string) bool {
	for _, node := range targets {
		present, err := node.Images(ctx, bin)
		if err != nil {
			return false
		}
		for _, name := range names {
			if !slices.Contains(present, name) {
				return false
			}
		}
	}
	return true
}

func writeArchive(imported []*images.Image) (path string, err error) {
	file, err := os.CreateTemp(machine.StateDir, "images-*.tar")
	if err != nil {
		return "", fmt.Errorf("write an image archive: %w", err)
	}
	defer file.Close()
	if err := images.WriteArchive(file, imported...); err != nil {
		_ = os.Remove(file.Name())
		return "", err
	}
	return file.Name(), nil
}

// ctr runs ctr on the host, for the node's containerd.
func (n *Node) ctr(ctx context.Context, bin string, args ...string) (string, error) {
	return n.ctrWithInput(ctx, bin, nil, args...)
}

func (n *Node) ctrWithInput(ctx context.Context, bin string, input io.Reader, args ...string) (string, error) {
	args = append([]string{"-a", n.ContainerdSocket(), "-n", "k8s.io"}, args...)
	ctr := machine.Namespace{}.Command(ctx, bin+"/ctr", args...)
	ctr.Stdin = input
	out, err := ctr.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("node %s: ctr %s: %w: %s", n.Name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}
