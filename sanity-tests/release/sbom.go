package release

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"storage.liqo.io/sanity-tests/images"
)

// bom has the used fields of a CycloneDX document.
type bom struct {
	Format       string       `json:"bomFormat"`
	SpecVersion  string       `json:"specVersion"`
	Version      int          `json:"version"`
	Metadata     metadata     `json:"metadata"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type metadata struct {
	Timestamp string    `json:"timestamp"`
	Component component `json:"component"`
}

type component struct {
	Type     string    `json:"type"`
	Ref      string    `json:"bom-ref"`
	Name     string    `json:"name"`
	Version  string    `json:"version"`
	Purl     string    `json:"purl"`
	Licenses []license `json:"licenses,omitempty"`
	Hashes   []hash    `json:"hashes,omitempty"`
}

type license struct {
	Expression string `json:"expression"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type dependency struct {
	Ref       string   `json:"ref"`
	DependsOn []string `json:"dependsOn,omitempty"`
}

// crates has the used fields of the output of `cargo metadata`.
type crates struct {
	Packages []struct {
		ID, Name, Version string
		License, Source   *string
	}
	Resolve struct {
		Nodes []struct {
			ID   string
			Deps []struct {
				Pkg      string
				DepKinds []struct{ Kind *string } `json:"dep_kinds"`
			}
		}
	}
}

// program is the package whose crates are listed.
const program = "liqo-csi"

// SBOM lists the parts of a release: the crates of the driver with their checksums from Cargo.lock,
// and the Debian packages with files in the images.
func (r *Release) SBOM(ctx context.Context, built []*BuiltImage) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "cargo", "metadata", "--locked", "--format-version", "1")
	cmd.Dir = r.Root
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("cargo metadata: %w: %s", err, said.String())
	}
	var all crates
	if err := json.Unmarshal(out, &all); err != nil {
		return nil, fmt.Errorf("read what cargo metadata prints: %w", err)
	}
	locked, err := os.ReadFile(filepath.Join(r.Root, "Cargo.lock"))
	if err != nil {
		return nil, err
	}
	document := bom{Format: "CycloneDX", SpecVersion: "1.5", Version: 1}
	document.Metadata.Timestamp = r.Time.UTC().Format(time.RFC3339)
	if err := document.addCrates(all, checksums(string(locked))); err != nil {
		return nil, err
	}
	for _, image := range built {
		for _, of := range image.Packages {
			document.Components = append(document.Components, debianComponent(of))
		}
	}
	// The same package for all architectures is listed once.
	slices.SortFunc(document.Components, func(a, b component) int { return cmp.Compare(a.Ref, b.Ref) })
	document.Components = slices.CompactFunc(document.Components, func(a, b component) bool { return a.Ref == b.Ref })
	return json.MarshalIndent(document, "", "  ")
}

// addCrates adds the crates that are compiled into the driver, not those of tests.
func (b *bom) addCrates(all crates, sums map[string]string) error {
	needs := map[string][]string{}
	for _, node := range all.Resolve.Nodes {
		for _, dep := range node.Deps {
			for _, of := range dep.DepKinds {
				if of.Kind == nil || *of.Kind != "dev" {
					needs[node.ID] = append(needs[node.ID], dep.Pkg)
					break
				}
			}
		}
	}
	components, root := map[string]component{}, ""
	for _, of := range all.Packages {
		if of.Name == program && of.Source == nil {
			root = of.ID
		}
		purl := fmt.Sprintf("pkg:cargo/%s@%s", of.Name, url.QueryEscape(of.Version))
		one := component{Type: "library", Ref: purl, Name: of.Name, Version: of.Version, Purl: purl}
		if of.License != nil {
			// A slash means OR in Cargo.toml.
			one.Licenses = []license{{Expression: strings.ReplaceAll(*of.License, "/", " OR ")}}
		}
		if sum := sums[of.Name+" "+of.Version]; sum != "" {
			one.Hashes = []hash{{Algorithm: "SHA-256", Content: sum}}
		}
		components[of.ID] = one
	}
	if root == "" {
		return fmt.Errorf("cargo metadata does not list the package %s", program)
	}
	reached := map[string]bool{}
	for todo := []string{root}; len(todo) > 0; todo = todo[1:] {
		if !reached[todo[0]] {
			reached[todo[0]] = true
			todo = append(todo, needs[todo[0]]...)
		}
	}
	b.Metadata.Component = components[root]
	b.Metadata.Component.Type = "application"
	for _, id := range slices.Sorted(maps.Keys(reached)) {
		of := dependency{Ref: components[id].Ref}
		for _, needed := range needs[id] {
			of.DependsOn = append(of.DependsOn, components[needed].Ref)
		}
		slices.Sort(of.DependsOn)
		of.DependsOn = slices.Compact(of.DependsOn)
		b.Dependencies = append(b.Dependencies, of)
		if id != root {
			b.Components = append(b.Components, components[id])
		}
	}
	return nil
}

// checksums returns the checksums in Cargo.lock, by name and version.
func checksums(locked string) map[string]string {
	sums := map[string]string{}
	for _, block := range strings.Split(locked, "[[package]]\n")[1:] {
		fields := map[string]string{}
		for line := range strings.Lines(block) {
			if key, value, is := strings.Cut(strings.TrimSpace(line), " = "); is {
				fields[key] = strings.Trim(value, `"`)
			}
		}
		sums[fields["name"]+" "+fields["version"]] = fields["checksum"]
	}
	return sums
}

func debianComponent(of images.Package) component {
	purl := fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s", of.Name, url.QueryEscape(of.Version), of.Architecture)
	return component{Type: "library", Ref: purl, Name: of.Name, Version: of.Version, Purl: purl}
}
