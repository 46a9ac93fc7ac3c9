// Package fabrics returns the versions of this module's dependencies. The packages liqo and kosmos
// have the objects of the fabrics; tests of other modules call the program cmd/fabric-objects.
package fabrics

import (
	_ "embed"
	"fmt"

	"golang.org/x/mod/modfile"
)

// Test programs have no build information.
//
//go:embed go.mod
var goMod []byte

// Version returns the version of a module in go.mod.
func Version(module string) (string, error) {
	file, err := modfile.ParseLax("go.mod", goMod, nil)
	if err != nil {
		return "", fmt.Errorf("parse go.mod: %w", err)
	}
	for _, required := range file.Require {
		if required.Mod.Path == module {
			return required.Mod.Version, nil
		}
	}
	return "", fmt.Errorf("this module does not use %s", module)
}
