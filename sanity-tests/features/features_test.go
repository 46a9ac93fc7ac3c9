package features

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../../"

// suitesOfPlace are the suites whose tests prove capabilities in a place.
var suitesOfPlace = map[string][]string{
	"home":   {"e2e/driver", "e2e/faults"},
	"remote": {"e2e/remote", "e2e/faults", "e2e/liqo"},
}

// rows are required, whatever the driver advertises.
var rows = []string{
	"data stays when pods go", "deletion", "`Retain`", "Block", "ReadWriteMany", "ReadOnlyMany", "ReadWriteOncePod",
	"`fsGroup`", "`subPath`", "mount options", "secrets of the real driver", "`Immediate` classes", "ephemeral volumes",
	"nodes that fail", "volume populators", "import of claims", "release of claims", "moves",
}

// advertised maps capabilities of the driver's services to rows. Those without an effect for users
// have none.
var advertised = map[string]string{
	"CreateDeleteVolume":     "deletion",
	"PublishUnpublishVolume": "attached volumes",
	"StageUnstageVolume":     "data stays when pods go",
	"SingleNodeMultiWriter":  "ReadWriteOncePod",
	"GetCapacity":            "storage capacity for the scheduler",
	"ExpandVolume":           "expansion",
	"ModifyVolume":           "VolumeAttributesClass",
	"CreateDeleteSnapshot":   "snapshots and restore",
	"CloneVolume":            "clones",
	"ListSnapshots":          "",
	"GetSnapshot":            "",
	"ListVolumes":            "",
	"GetVolumeStats":         "",
}

func table(t *testing.T) []Row {
	t.Helper()
	found, err := Read(root + "docs/capabilities.md")
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// sources returns the sources of all tests of a suite, by their names.
func sources(t *testing.T, suite string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", suite, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has no tests: %v", suite, err)
	}
	texts := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, file, text, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, declaration := range parsed.Decls {
			function, is := declaration.(*ast.FuncDecl)
			if is && function.Recv == nil && strings.HasPrefix(function.Name.Name, "Test") {
				from, to := set.Position(function.Pos()).Offset, set.Position(function.End()).Offset
				texts[function.Name.Name] = string(text[from:to])
			}
		}
	}
	return texts
}

// A cell names existing tests of its place, or says that there are none. The source of a test of
// other storage than the reference driver's contains its class.
func TestEveryCellNamesTestsOfItsPlace(t *testing.T) {
	for _, row := range table(t) {
		suites, known := suitesOfPlace[row.Where]
		if !known {
			t.Errorf("%s: there is no place %q", row.Capability, row.Where)
			continue
		}
		texts := map[string]string{}
		for _, suite := range suites {
			for name, text := range sources(t, suite) {
				texts[name] = text
			}
		}
		for kind, cell := range row.Cells {
			names := Tests(cell)
			if len(names) == 0 && cell != "not tested" && cell != "none such" {
				t.Errorf("%s, %s, %s: %q names no test", row.Capability, row.Where, kind, cell)
			}
			for _, name := range names {
				text, exists := texts[name]
				if !exists {
					t.Errorf("%s, %s, %s: there is no %s in %v", row.Capability, row.Where, kind, name, suites)
				} else if kind != "reference" && !strings.Contains(text, kind) {
					t.Errorf("%s, %s, %s: %s does not use that class", row.Capability, row.Where, kind, name)
				}
			}
		}
	}
}

// Each capability has one row for each place, and a test in at least one of them.
func TestNoRowIsMissing(t *testing.T) {
	told := map[string][]string{}
	isShown := map[string]bool{}
	for _, row := range table(t) {
		told[row.Capability] = append(told[row.Capability], row.Where)
		for _, cell := range row.Cells {
			isShown[row.Capability] = isShown[row.Capability] || len(Tests(cell)) > 0
		}
	}
	for capability, places := range told {
		if !slices.Equal(places, []string{"home", "remote"}) {
			t.Errorf("%s is listed for %v", capability, places)
		}
		if !isShown[capability] {
			t.Errorf("no test proves %s", capability)
		}
	}
	for _, row := range rows {
		if told[row] == nil {
			t.Errorf("the table has no row %q", row)
		}
	}
}

var capability = regexp.MustCompile(`(?:Type|Can)::([A-Za-z]+),`)

// Every capability that the driver advertises has a row in the table.
func TestEveryAdvertisedCapabilityHasARow(t *testing.T) {
	told := map[string]bool{}
	for _, row := range table(t) {
		told[row.Capability] = true
	}
	for _, file := range []string{"controller.rs", "node.rs"} {
		text, err := os.ReadFile(root + "src/csi/" + file)
		if err != nil {
			t.Fatal(err)
		}
		found := capability.FindAllStringSubmatch(string(text), -1)
		if len(found) < 3 {
			t.Errorf("%s advertises only %v: check how this test parses it", file, found)
		}
		for _, one := range found {
			row, known := advertised[one[1]]
			if !known {
				t.Errorf("%s advertises %s, which this test maps to no row", file, one[1])
			} else if row != "" && !told[row] {
				t.Errorf("%s advertises %s, and the table has no row %q", file, one[1], row)
			}
		}
	}
}
