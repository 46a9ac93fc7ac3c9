package components

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Version returns the version of a module that a nested module pins.
func Version(ctx context.Context, folder, module string) (string, error) {
	root, err := ModuleRoot(ctx)
	if err != nil {
		return "", err
	}
	return moduleVersion(filepath.Join(root, "components", folder, "go.mod"), module)
}

// moduleVersion reads a version from the `require` lines of a go.mod.
func moduleVersion(file, module string) (string, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read the pins: %w", err)
	}
	for line := range strings.Lines(string(content)) {
		fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
		if len(fields) >= 2 && fields[0] == module && strings.HasPrefix(fields[1], "v") {
			return fields[1], nil
		}
	}
	return "", fmt.Errorf("%s does not pin %s", file, module)
}

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }
