package nodes

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"storage.liqo.io/sanity-tests/images"
	"storage.liqo.io/sanity-tests/machine"
)

// Import puts images into the containerd of every given node, which then runs
// pods from them without pulling anything. An image of that name that is there
// already is replaced. Layers are unpacked when a pod first needs them.
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

// Images lists the names of the images a node has.
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

// ctr talks to the node's containerd from the host.
func (n *Node) ctr(ctx context.Context, bin string, args ...string) (string, error) {
	args = append([]string{"-a", n.HostPath(containerdSocket), "-n", "k8s.io"}, args...)
	out, err := machine.Namespace{}.Command(ctx, bin+"/ctr", args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("node %s: ctr %s: %w: %s", n.Name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}
