package chart

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"
)

// mayBeNull are values that pods and users may go without.
var mayBeNull = regexp.MustCompile(`(^|\.)(resources|tolerations|priorityClassName|userRoles)(\.|$)`)

// paths are those of all values, of objects as well.
func paths(of map[string]any, above ...string) (all [][]string) {
	for key, value := range of {
		path := append(slices.Clone(above), key)
		all = append(all, path)
		if inner, is := value.(map[string]any); is {
			all = append(all, paths(inner, path...)...)
		}
	}
	return all
}

// Helm removes a default whose value is null. No policy, port or flag may be missing without a word because of that.
func TestNullIsRefusedOrMeansTheDefault(t *testing.T) {
	h := helm(t)
	text, err := os.ReadFile(filepath.Join(h.chart, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	defaults := map[string]any{}
	if err := yaml.Unmarshal(text, &defaults); err != nil {
		t.Fatal(err)
	}
	sides := map[bool]Values{
		false: offloading(Values{"policies": true}),
		true:  {"remoteAccess": Values{"only": true, "level": "fabric", "homeClusterID": homeID, "token": "session"}},
	}
	want := map[bool][]byte{}
	for side, values := range sides {
		if want[side], err = h.Render(t.Context(), Release, Namespace, values); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range paths(defaults) {
		name, side := strings.Join(path, "."), path[0] == "remoteAccess"
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := h.run(t.Context(), sides[side], "template", Release, h.chart, "--namespace", Namespace, "--set", name+"=null")
			switch {
			case err == nil && !bytes.Equal(got, want[side]) && !mayBeNull.MatchString(name):
				t.Error("null is accepted, and renders something else than the default")
			case err != nil && (!strings.Contains(err.Error(), path[len(path)-1]) || strings.Contains(err.Error(), "error calling") ||
				strings.Contains(err.Error(), "nil pointer")):
				t.Errorf("the error does not say which value is null: %v", err)
			}
		})
	}
}

// Strings of users are rendered as strings, also if YAML would parse them as something else.
func TestStringsAreQuoted(t *testing.T) {
	arguments := []string{"--a=b: c", "--d=e #f", "--g={h}"}
	values := Values{
		"storageClasses": []Values{{"name": "1", "realStorageClass": "1e3", "fsType": "off"}},
		"controller":     Values{"extraArgs": arguments, "attacher": Values{"extraArgs": arguments}},
		"fabric":         Values{"enabled": true, "extraArgs": arguments},
		"node":           Values{"extraArgs": arguments},
	}
	text, err := helm(t).Render(t.Context(), "123", Namespace, values)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, object := range decode(t, text) {
		var of workload
		switch one := object.(type) {
		case *appsv1.Deployment:
			of.pod = one.Spec.Template
		case *appsv1.DaemonSet:
			of.pod = one.Spec.Template
		}
		for _, container := range of.pod.Spec.Containers {
			if n := len(container.Args); n > 3 && slices.Equal(container.Args[n-3:], arguments) {
				found++
			}
		}
	}
	if found != 4 {
		t.Errorf("%d containers have the arguments of the user, not 4", found)
	}
}

// Users who may create a VolumeMove choose the size of pods in the namespace of the release.
func TestSizeOfMoversIsLimited(t *testing.T) {
	for most, want := range map[*Values][]string{
		nil:                      {"--mover-max-cpu=4", "--mover-max-memory=4Gi"},
		{"cpu": 2, "memory": ""}: {"--mover-max-cpu=2"},
	} {
		values := Values{}
		if most != nil {
			values["mover"] = Values{"maxResources": *most}
		}
		controller := named[*appsv1.Deployment](t, render(t, values), "liqo-csi-controller").Spec.Template.Spec
		var got []string
		for _, container := range controller.Containers {
			for _, argument := range container.Args {
				if strings.HasPrefix(argument, "--mover-max-") {
					got = append(got, argument)
				}
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%v: %q instead of %q", most, got, want)
		}
	}
}

func TestInvalidStringsAreRefused(t *testing.T) {
	for name, values := range map[string]Values{
		"image/repository":        {"image": Values{"repository": "registry.example.com/liqo-csi:0.1.0"}},
		"image/tag":               {"image": Values{"tag": "a b"}},
		"mover/image":             {"mover": Values{"image": "a: b"}},
		"mover/maxResources/cpu":  {"mover": Values{"maxResources": Values{"cpu": "many"}}},
		"imagePullSecrets/0":      {"imagePullSecrets": []Values{{"Name": "a"}}},
		"imagePullSecrets/0/name": {"imagePullSecrets": []Values{{"name": "a,b"}}},
		"extraEnv/0/value":        {"extraEnv": []Values{{"name": "A", "value": 3}}},
		"kubeletRoot":             {"kubeletRoot": "/var/lib/a: b"},
	} {
		_, err := helm(t).Render(t.Context(), Release, Namespace, values)
		if err == nil || !strings.Contains(err.Error(), "at '/"+name+"'") {
			t.Errorf("%s: want an error that names it, got %v", name, err)
		}
	}
	allowed := Values{"image": Values{"repository": "registry.example.com:5000/a/liqo-csi", "tag": "0.1.0@sha256:ab"}}
	if _, err := helm(t).Render(t.Context(), Release, Namespace, allowed); err != nil {
		t.Error(err)
	}
}
