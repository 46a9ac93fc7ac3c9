package protos

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bufbuild/protocompile"
	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/reflect/protoreflect"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// The interfaces that are compiled into the driver, and the official ones.
var interfaces = []struct {
	file     string
	official protoreflect.FileDescriptor
}{
	{"csi.proto", csi.File_csi_proto},
	{"registration.proto", (&registration.PluginInfo{}).ProtoReflect().Descriptor().ParentFile()},
}

func TestProtosMatchTheOfficialInterface(t *testing.T) {
	for _, api := range interfaces {
		t.Run(api.file, func(t *testing.T) {
			official := Describe(api.official)
			differences := Differences(official, Describe(compile(t, api.file, read(t, api.file))))
			for _, difference := range differences {
				t.Error(difference)
			}
			t.Logf("%s: %d facts compared, %d differ", api.file, len(official), len(differences))
		})
	}
}

// A comparison that cannot fail proves nothing.
func TestDifferencesAreDetected(t *testing.T) {
	source := read(t, "csi.proto")
	official := Describe(csi.File_csi_proto)
	for name, edit := range map[string]struct{ from, to, blames string }{
		"number":     {"string volume_id = 1;", "string volume_id = 77;", "volume_id"},
		"type":       {"int64 required_bytes = 1;", "int32 required_bytes = 1;", "CapacityRange.required_bytes"},
		"name":       {"int64 limit_bytes = 2;", "int64 limited_bytes = 2;", "CapacityRange.limited_bytes"},
		"secret":     {"[(csi_secret) = true]", "", "secrets"},
		"enum value": {"STAGE_UNSTAGE_VOLUME = 1;", "STAGE_UNSTAGE_VOLUME = 99;", "STAGE_UNSTAGE_VOLUME"},
		"method":     {"rpc Probe(ProbeRequest) returns (ProbeResponse);", "", "Identity.Probe"},
		"extra":      {"message ProbeRequest {}", "message ProbeRequest { int32 more = 1; }", "ProbeRequest.more"},
	} {
		t.Run(name, func(t *testing.T) {
			if !strings.Contains(source, edit.from) {
				t.Fatalf("csi.proto does not contain %q: choose another edit", edit.from)
			}
			edited := strings.Replace(source, edit.from, edit.to, 1)
			differences := Differences(official, Describe(compile(t, "csi.proto", edited)))
			if !strings.Contains(strings.Join(differences, "\n"), edit.blames) {
				t.Errorf("replacing %q by %q was not detected; differences: %q", edit.from, edit.to, differences)
			}
		})
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "proto", file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func compile(t *testing.T, file, text string) protoreflect.FileDescriptor {
	t.Helper()
	compiler := protocompile.Compiler{Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{
		Accessor: protocompile.SourceAccessorFromMap(map[string]string{file: text}),
	})}
	files, err := compiler.Compile(context.Background(), file)
	if err != nil {
		t.Fatalf("%s does not compile: %v", file, err)
	}
	return files[0]
}
