// Package chart runs Helm, built from its module, to render, install and remove the chart in
// deploy/. Package driver has the images and values for the clusters of the lab.
package chart

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"storage.liqo.io/sanity-tests/components"
)

// Values are settings as in a values file of Helm.
type Values map[string]any

// Helm is the program and, for commands that need a cluster, its kubeconfig.
type Helm struct {
	program    string
	chart      string
	Kubeconfig string
}

// New returns Helm from the cache, or builds it.
func New(ctx context.Context) (*Helm, error) {
	root, err := components.ModuleRoot(ctx)
	if err != nil {
		return nil, err
	}
	return NewFor(ctx, filepath.Join(root, "..", "deploy", "chart", "liqo-csi"))
}

// NewFor is New for the chart in another folder.
func NewFor(ctx context.Context, chart string) (*Helm, error) {
	program, err := components.Tool(ctx, "helm", "helm.sh/helm/v4/cmd/helm")
	if err != nil {
		return nil, err
	}
	return &Helm{program: program, chart: chart}, nil
}

// Render is `helm template`: the manifests with the hooks of `helm test`, without a cluster.
func (h *Helm) Render(ctx context.Context, release, namespace string, values Values) ([]byte, error) {
	return h.run(ctx, values, "template", release, h.chart, "--namespace", namespace)
}

// RenderFor is Render for a cluster that has these API versions as well.
func (h *Helm) RenderFor(ctx context.Context, release, namespace, apiVersions string, values Values) ([]byte, error) {
	return h.run(ctx, values, "template", release, h.chart, "--namespace", namespace, "--api-versions", apiVersions)
}

// RenderAt is Render as for an installation in the cluster of the kubeconfig, whose API versions
// and objects templates read.
func (h *Helm) RenderAt(ctx context.Context, release, namespace string, values Values) ([]byte, error) {
	return h.run(ctx, values, "template", release, h.chart, "--namespace", namespace, "--dry-run=server",
		"--disable-openapi-validation")
}

// oldestKubernetes is the oldest version that README.md names.
const oldestKubernetes = "1.30.0"

// RenderWithCRDs is Render preceded by the definitions that Helm would install, and without the
// hooks of `helm test`, which kubectl apply would run. It has no field that the oldest Kubernetes
// refuses.
func (h *Helm) RenderWithCRDs(ctx context.Context, release, namespace string, values Values) ([]byte, error) {
	return h.run(ctx, values, "template", release, h.chart, "--namespace", namespace, "--include-crds", "--skip-tests",
		"--kube-version", oldestKubernetes)
}

// Notes returns what Helm prints after an installation, without a cluster.
func (h *Helm) Notes(ctx context.Context, release, namespace string, values Values) (string, error) {
	out, err := h.run(ctx, values, "install", release, h.chart, "--namespace", namespace,
		"--dry-run=client", "--skip-crds", "--output", "json")
	if err != nil {
		return "", err
	}
	var installation struct{ Info struct{ Notes string } }
	if err := json.Unmarshal(out, &installation); err != nil {
		return "", fmt.Errorf("read what helm install says: %w", err)
	}
	return installation.Info.Notes, nil
}

// Lint is `helm lint --strict`.
func (h *Helm) Lint(ctx context.Context) error {
	_, err := h.run(ctx, nil, "lint", h.chart, "--strict")
	return err
}

// Package is `helm package`: it writes the chart's archive into a folder.
func (h *Helm) Package(ctx context.Context, folder string) error {
	_, err := h.run(ctx, nil, "package", h.chart, "--destination", folder)
	return err
}

// Install is `helm upgrade --install`: it installs or upgrades the release with these values, and
// waits until it is ready.
func (h *Helm) Install(ctx context.Context, release, namespace string, values Values) error {
	_, err := h.run(ctx, values, "upgrade", release, h.chart, "--install", "--namespace", namespace,
		"--create-namespace", "--wait", "--timeout", "5m")
	return err
}

// Uninstall is `helm uninstall`; it is no error if the release does not exist. It does not wait:
// with --wait, Helm 4 assumes that an object which it has not observed yet is deleted, and fails
// when it observes the object later.
func (h *Helm) Uninstall(ctx context.Context, release, namespace string, flags ...string) error {
	_, err := h.run(ctx, nil, append([]string{"uninstall", release, "--namespace", namespace, "--ignore-not-found"}, flags...)...)
	return err
}

// Test is `helm test`. Its error has the output of the chart's tests.
func (h *Helm) Test(ctx context.Context, release, namespace string) error {
	_, err := h.run(ctx, nil, "test", release, "--namespace", namespace, "--timeout", "2m")
	return err
}

// Command runs Helm with these arguments, as in documentation.
func (h *Helm) Command(ctx context.Context, args ...string) error {
	_, err := h.run(ctx, nil, args...)
	return err
}

func (h *Helm) run(ctx context.Context, values Values, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, h.program, args...)
	cmd.Env = os.Environ()
	if h.Kubeconfig != "" {
		cmd.Env = append(cmd.Env, "KUBECONFIG="+h.Kubeconfig)
	}
	if values != nil {
		settings, err := json.Marshal(values) // JSON is YAML
		if err != nil {
			return nil, fmt.Errorf("write the values: %w", err)
		}
		cmd.Args = append(cmd.Args, "--values", "-")
		cmd.Stdin = bytes.NewReader(settings)
	}
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = errors.Join(err, ctx.Err())
		}
		return nil, fmt.Errorf("helm %s: %w: %s%s", args[0], err, strings.TrimSpace(said.String()), findings(args[0], out))
	}
	return out.Bytes(), nil
}

// findings returns what lint and test report on standard output.
func findings(command string, out bytes.Buffer) string {
	if command != "lint" && command != "test" {
		return ""
	}
	return "\n" + out.String()
}
