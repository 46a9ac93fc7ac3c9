package components

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const pins = `module example.test/pins

tool example.test/one/cmd/one

require example.test/zero v0.1.0

require (
	example.test/one v1.2.3
	example.test/two/v2 v2.0.1 // indirect
)

replace example.test/three => example.test/three v3.0.0
`

func pinned(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "go.mod")
	if err := os.WriteFile(file, []byte(pins), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestVersionsMatchGoMod(t *testing.T) {
	for module, want := range map[string]string{
		"example.test/zero": "v0.1.0", "example.test/one": "v1.2.3", "example.test/two/v2": "v2.0.1",
	} {
		if got, err := moduleVersion(pinned(t), module); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", module, got, err, want)
		}
	}
	_, err := moduleVersion(pinned(t), "example.test/three")
	if err == nil || !strings.Contains(err.Error(), "example.test/three") {
		t.Errorf("a module that is not required: %v", err)
	}
}

func TestCacheKeyDependsOnPinnedVersions(t *testing.T) {
	root, err := ModuleRoot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	before, err := cacheKey(root, modules)
	if err != nil {
		t.Fatal(err)
	}
	copied := t.TempDir()
	if err := os.CopyFS(filepath.Join(copied, "components"), os.DirFS(filepath.Join(root, "components"))); err != nil {
		t.Fatal(err)
	}
	if same, err := cacheKey(copied, modules); err != nil || same != before {
		t.Errorf("another clone has another key: %s, %s, %v", before, same, err)
	}
	for _, changed := range []string{"containerd/go.mod", "coredns/main.go"} {
		file := filepath.Join(copied, "components", changed)
		if err := os.WriteFile(file, append([]byte("// changed\n"), mustRead(t, file)...), 0o600); err != nil {
			t.Fatal(err)
		}
		after, err := cacheKey(copied, modules)
		if err != nil || after == before {
			t.Errorf("with another %s the key is the same: %v", changed, err)
		}
		before = after
	}
}

// A change of Liqo's module must not rebuild the lab.
func TestLiqoModuleDoesNotChangeCacheKeyOfLab(t *testing.T) {
	root, err := ModuleRoot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	copied := t.TempDir()
	if err := os.CopyFS(filepath.Join(copied, "components"), os.DirFS(filepath.Join(root, "components"))); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(copied, "components", "liqo", "go.mod")
	if err := os.WriteFile(file, append([]byte("// changed\n"), mustRead(t, file)...), 0o600); err != nil {
		t.Fatal(err)
	}
	keys := func(root string) (lab, liqo string) {
		lab, labErr := cacheKey(root, modules)
		liqo, liqoErr := cacheKey(root, liqoModules)
		if labErr != nil || liqoErr != nil {
			t.Fatal(labErr, liqoErr)
		}
		return lab, liqo
	}
	labBefore, liqoBefore := keys(root)
	labAfter, liqoAfter := keys(copied)
	if labBefore != labAfter || liqoBefore == liqoAfter {
		t.Errorf("the lab's key went from %s to %s, Liqo's from %s to %s", labBefore, labAfter, liqoBefore, liqoAfter)
	}
}

func mustRead(t *testing.T, file string) []byte {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return content
}
