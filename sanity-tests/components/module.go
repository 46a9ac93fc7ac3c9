package components

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
)

// Source returns the folder in the module cache of a module that a nested module pins, for files such
// as charts and CustomResourceDefinitions.
func Source(ctx context.Context, folder, path string) (string, error) {
	root, err := ModuleRoot(ctx)
	if err != nil {
		return "", err
	}
	cmd := goCommand(ctx, filepath.Join(root, "components", folder), "mod", "download", "-json", path)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, failure := cmd.Output()
	var module struct{ Dir, Error string }
	if err := json.Unmarshal(out, &module); err == nil && module.Dir != "" {
		return module.Dir, nil
	}
	return "", fmt.Errorf("find %s in the module cache: %w: %s%s", path, failure, module.Error, stderr.String())
}
