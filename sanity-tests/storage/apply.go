package storage

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"

	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/components"
)

//go:embed manifests
var manifests embed.FS

// applier applies objects with server-side apply, which is idempotent.
type applier struct {
	client dynamic.Interface
	mapper *restmapper.DeferredDiscoveryRESTMapper
}

func newApplier(cluster *clusters.Cluster) (*applier, error) {
	config, err := cluster.Config()
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	kinds, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	return &applier{client: client, mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(kinds))}, nil
}

// applyManifest renders one of the embedded manifests and applies it.
func (a *applier) applyManifest(ctx context.Context, name string, filled values) error {
	file := "manifests/" + name + ".yaml"
	parsed, err := template.New(name+".yaml").Funcs(template.FuncMap{"join": strings.Join}).Option("missingkey=error").ParseFS(manifests, file)
	if err != nil {
		return fmt.Errorf("manifest %s: %w", name, err)
	}
	var text bytes.Buffer
	if err := parsed.Execute(&text, filled); err != nil {
		return fmt.Errorf("manifest %s: %w", name, err)
	}
	if err := a.apply(ctx, &text); err != nil {
		return fmt.Errorf("manifest %s: %w", name, err)
	}
	return nil
}

// apply applies all objects of a YAML stream, in its order.
func (a *applier) apply(ctx context.Context, text io.Reader) error {
	documents := yaml.NewYAMLOrJSONDecoder(text, 4096)
	for {
		object := &unstructured.Unstructured{}
		err := documents.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if len(object.Object) == 0 {
			continue
		}
		if err := a.applyObject(ctx, object); err != nil {
			return fmt.Errorf("apply %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
}

func (a *applier) applyObject(ctx context.Context, object *unstructured.Unstructured) error {
	kind := object.GroupVersionKind()
	mapping, err := a.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return err
	}
	var resource dynamic.ResourceInterface = a.client.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		resource = a.client.Resource(mapping.Resource).Namespace(object.GetNamespace())
	}
	_, err = resource.Apply(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: "lab-storage", Force: true})
	return err
}

const snapshotClientModule = "github.com/kubernetes-csi/external-snapshotter/client/v8"

// applySnapshotCRDs applies the CRDs in the module of the snapshot controller's client, and waits
// until their kinds are served.
func applySnapshotCRDs(ctx context.Context, a *applier) error {
	dir, err := moduleDir(ctx, "kubernetes", snapshotClientModule)
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(dir, "config", "crd", "*snapshot.storage.k8s.io_*.yaml"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("no CRDs in module %s (%s)", snapshotClientModule, dir)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err == nil {
			err = a.apply(ctx, bytes.NewReader(text))
		}
		if err != nil {
			return fmt.Errorf("CRD %s: %w", filepath.Base(file), err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return waitFor(ctx, "snapshot CRDs", func(context.Context) (string, error) {
		a.mapper.Reset()
		_, err := a.mapper.RESTMapping(schema.GroupKind{Group: "snapshot.storage.k8s.io", Kind: "VolumeSnapshotClass"}, "v1")
		return "", err
	})
}

// moduleDir returns the folder in Go's module cache of a module that a folder of components pins.
func moduleDir(ctx context.Context, folder, module string) (string, error) {
	root, err := components.ModuleRoot(ctx)
	if err != nil {
		return "", err
	}
	list := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module)
	list.Dir = filepath.Join(root, "components", folder)
	list.Env = append(os.Environ(), "GOWORK=off")
	out, err := list.Output()
	if err != nil {
		return "", fmt.Errorf("find module %s: %w", module, err)
	}
	return strings.TrimSpace(string(out)), nil
}
