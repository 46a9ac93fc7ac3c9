package liqo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"storage.liqo.io/fabrics"
	"storage.liqo.io/fabrics/cluster"
)

const modulePath = "github.com/liqotech/liqo"

// Paths in Liqo's module.
const (
	definitionsFolder = "deployments/liqo/charts/liqo-crds/crds"
	remoteRoleFile    = "deployments/liqo/files/liqo-virtual-kubelet-remote-ClusterRole.yaml"
)

// definitionFiles are the definitions about storage and access to remote clusters. Liqo's others are
// about its network.
var definitionFiles = []string{
	"authentication.liqo.io_identities.yaml",
	"offloading.liqo.io_namespacemaps.yaml",
	"offloading.liqo.io_namespaceoffloadings.yaml",
	"offloading.liqo.io_virtualnodes.yaml",
}

// Definitions returns these CustomResourceDefinitions of Liqo's module.
func Definitions(ctx context.Context) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	var definitions []*apiextensionsv1.CustomResourceDefinition
	for _, name := range definitionFiles {
		manifest, err := readModuleFile(ctx, filepath.Join(definitionsFolder, name))
		if err != nil {
			return nil, err
		}
		definition, err := cluster.Definition(manifest)
		if err != nil {
			return nil, fmt.Errorf("Liqo's file %s: %w", name, err)
		}
		definitions = append(definitions, definition)
	}
	return definitions, nil
}

// remoteRules returns the rights of a consumer's virtual kubelet in a namespace of the provider.
func remoteRules(ctx context.Context) ([]rbacv1.PolicyRule, error) {
	manifest, err := readModuleFile(ctx, remoteRoleFile)
	if err != nil {
		return nil, err
	}
	role := &rbacv1.ClusterRole{}
	if err := yaml.UnmarshalStrict(manifest, role); err != nil {
		return nil, fmt.Errorf("Liqo's file %s: %w", remoteRoleFile, err)
	}
	if len(role.Rules) == 0 {
		return nil, fmt.Errorf("Liqo's file %s has no rules", remoteRoleFile)
	}
	return role.Rules, nil
}

func readModuleFile(ctx context.Context, name string) ([]byte, error) {
	folder, err := moduleFolder(ctx)
	if err != nil {
		return nil, err
	}
	content, err := os.ReadFile(filepath.Join(folder, name))
	if err != nil {
		return nil, fmt.Errorf("read a file of Liqo's module: %w", err)
	}
	return content, nil
}

// moduleFolder returns the folder of Liqo's module in the module cache, in the pinned version. With
// a version, `go mod download` works in any working directory.
func moduleFolder(ctx context.Context) (string, error) {
	version, err := fabrics.Version(modulePath)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", modulePath+"@"+version)
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, failure := cmd.Output()
	var module struct{ Dir, Error string }
	if err := json.Unmarshal(out, &module); err == nil && module.Dir != "" {
		return module.Dir, nil
	}
	return "", fmt.Errorf("find %s@%s in the module cache: %w: %s%s", modulePath, version, failure, module.Error, stderr.String())
}
