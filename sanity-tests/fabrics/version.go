// Package fabrics knows what this module pins. The objects of the fabrics are in
// the packages liqo and kosmos, the program for tests of other modules is
// cmd/fabric-objects.
package fabrics

import (
	_ "embed"
	"fmt"

	"golang.org/x/mod/modfile"
)

// The build information of a program would say the same, but that of a test says
// nothing.
//
//go:embed go.mod
var goMod []byte

// Version is the version of a module that is used here.
func Version(module string) (string, error) {
	file, err := modfile.ParseLax("go.mod", goMod, nil)
	if err != nil {
		return "", fmt.Errorf("read what this module pins: %w", err)
	}
	for _, required := range file.Require {
		if required.Mod.Path == module {
			return required.Mod.Version, nil
		}
	}
	return "", fmt.Errorf("this module does not use %s", module)
}
