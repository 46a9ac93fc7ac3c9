package chart

import (
	"bytes"
	"context"
	"path/filepath"
)

// Names of an installation from the plain manifests.
const (
	Release   = "liqo-csi"
	Namespace = "liqo-csi"
	// StorageNamespace is where the twins live; it is never part of the release.
	StorageNamespace = "liqo-storage"
)

const manifestsHeader = `# liqo-csi with the chart's default values, for those who do not use Helm.
# Rendered from deploy/chart/liqo-csi by "make chart-manifests"; do not edit.
#
#   kubectl create namespace liqo-csi
#   kubectl create namespace liqo-storage
#   kubectl apply -f liqo-csi.yaml
`

// Manifests renders what deploy/manifests holds. Helm's own labels are left out:
// nobody manages these objects with Helm.
func (h *Helm) Manifests(ctx context.Context) ([]byte, error) {
	rendered, err := h.RenderWithCRDs(ctx, Release, Namespace, nil)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	out.WriteString(manifestsHeader)
	for line := range bytes.Lines(rendered) {
		label := bytes.TrimSpace(line)
		if bytes.Equal(label, []byte("app.kubernetes.io/managed-by: Helm")) || bytes.HasPrefix(label, []byte("helm.sh/chart:")) {
			continue
		}
		out.Write(line)
	}
	return out.Bytes(), nil
}

// ManifestsFile is where they are kept.
func (h *Helm) ManifestsFile() string {
	return filepath.Join(h.chart, "..", "..", "manifests", "liqo-csi.yaml")
}
