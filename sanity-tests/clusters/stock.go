package clusters

import (
	"context"
	"fmt"

	"storage.liqo.io/sanity-tests/components"
	"storage.liqo.io/sanity-tests/images"
)

// stockPrograms are imported into the nodes as images under their published names. The tag is the
// version of the module in the folder of components.
var stockPrograms = []struct{ repository, program, folder, module string }{
	{"registry.k8s.io/sig-storage/csi-provisioner", "csi-provisioner", "kubernetes", "github.com/kubernetes-csi/external-provisioner/v6"},
	{"registry.k8s.io/sig-storage/csi-attacher", "csi-attacher", "kubernetes", "github.com/kubernetes-csi/external-attacher/v4"},
	{"registry.k8s.io/sig-storage/csi-resizer", "csi-resizer", "kubernetes", "github.com/kubernetes-csi/external-resizer/v2"},
	{"registry.k8s.io/sig-storage/csi-snapshotter", "csi-snapshotter", "kubernetes", "github.com/kubernetes-csi/external-snapshotter/v8"},
	{"registry.k8s.io/sig-storage/snapshot-controller", "snapshot-controller", "kubernetes", "github.com/kubernetes-csi/external-snapshotter/v8"},
	{"docker.io/rancher/local-path-provisioner", "local-path-provisioner", "localpath", "github.com/rancher/local-path-provisioner"},
}

// StockImage returns the full name of a stock program's image.
func StockImage(ctx context.Context, program string) (string, error) {
	for _, stock := range stockPrograms {
		if stock.program == program {
			version, err := components.Version(ctx, stock.folder, stock.module)
			return stock.repository + ":" + version, err
		}
	}
	return "", fmt.Errorf("no stock image of %q", program)
}

func (l *Lab) stockImages(ctx context.Context) ([]*images.Image, error) {
	busybox, err := images.Busybox()
	if err != nil {
		return nil, err
	}
	stock := []*images.Image{busybox}
	for _, known := range stockPrograms {
		name, err := StockImage(ctx, known.program)
		if err != nil {
			return nil, err
		}
		image, err := images.Program(name, l.bin.Path(known.program))
		if err != nil {
			return nil, err
		}
		stock = append(stock, image)
	}
	return stock, nil
}
