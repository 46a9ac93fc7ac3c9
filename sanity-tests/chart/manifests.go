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
	// StorageNamespace is the namespace of the twins. Helm creates it, and never deletes it.
	StorageNamespace = "liqo-storage"
)

const manifestsHeader = `# liqo-csi with the chart's default values, for those who do not use Helm.
# Rendered from deploy/chart/liqo-csi by "make chart-manifests"; do not edit.
#
#   kubectl create namespace liqo-csi
#   kubectl create namespace liqo-storage
#   kubectl apply -f liqo-csi.yaml
`

// Manifests renders deploy/manifests, without Helm's labels, because Helm does not manage these
// objects.
func (h *Helm) Manifests(ctx context.Context) ([]byte, error) {
	rendered, err := h.RenderWithCRDs(ctx, Release, Namespace, nil)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	out.WriteString(manifestsHeader)
	for line := range bytes.Lines(rendered) {
		if !bytes.Equal(bytes.TrimSpace(line), managedByHelm) && !namesTheChart(line) {
			out.Write(line)
		}
	}
	return out.Bytes(), nil
}

var managedByHelm = []byte("app.kubernetes.io/managed-by: Helm")

func namesTheChart(line []byte) bool {
	return bytes.HasPrefix(bytes.TrimSpace(line), []byte("helm.sh/chart:"))
}

// Levels are the levels of rights in a remote cluster.
var Levels = []string{"fabric", "full", "namespaced", "minimal"}

// Placeholders that `liqo-csi connect` replaces (crates/model/src/access/manifests.rs).
const (
	RemoteNamespace = "placeholder-namespace"
	HomeCluster     = "placeholder-home"
	ListedNamespace = "placeholder-listed"
)

const remoteHeader = `# What liqo-csi connect creates in a remote cluster, with placeholders for names:
# placeholder-namespace is the namespace of the identity, placeholder-home the id of the home cluster.
# Objects in placeholder-listed are created in each listed namespace.
# Rendered from deploy/chart/liqo-csi by "make chart-manifests"; do not edit.
`

// RemoteValues returns the values with which the chart renders what liqo-csi connect creates.
func RemoteValues(level, home string, namespaces ...string) Values {
	access := Values{"only": true, "level": level, "token": "session", "homeClusterID": home}
	if len(namespaces) > 0 {
		access["namespaces"] = namespaces
	}
	return Values{"remoteAccess": access}
}

// RemoteManifests renders the manifests of a level that the program embeds.
func (h *Helm) RemoteManifests(ctx context.Context, level string) ([]byte, error) {
	var listed []string
	if level == "namespaced" || level == "minimal" {
		listed = []string{ListedNamespace}
	}
	rendered, err := h.Render(ctx, "home", RemoteNamespace, RemoteValues(level, HomeCluster, listed...))
	if err != nil {
		return nil, err
	}
	return append([]byte(remoteHeader), AsConnectMakesIt(rendered)...), nil
}

// AsConnectMakesIt replaces Helm's marks with those of liqo-csi connect.
func AsConnectMakesIt(rendered []byte) []byte {
	var out bytes.Buffer
	for line := range bytes.Lines(rendered) {
		if !namesTheChart(line) {
			out.Write(bytes.Replace(line, managedByHelm, []byte("app.kubernetes.io/managed-by: liqo-csi-connect"), 1))
		}
	}
	return out.Bytes()
}

// RemoteManifestsFile returns the file of the manifests of a level.
func (h *Helm) RemoteManifestsFile(level string) string {
	return filepath.Join(h.chart, "..", "..", "..", "crates", "model", "manifests", "remote-"+level+".yaml")
}

// ManifestsFile returns the file of the manifests.
func (h *Helm) ManifestsFile() string {
	return filepath.Join(h.chart, "..", "..", "manifests", "liqo-csi.yaml")
}
