package nodes

import (
	"slices"
	"testing"
)

func TestOtherTagsAreOfTheSameRepository(t *testing.T) {
	const listed = `REF                              TYPE                                                 DIGEST     SIZE      PLATFORMS   LABELS
registry.test/a/program:new      application/vnd.docker.distribution.manifest.v2+json sha256:aaa 85.0 MiB linux/amd64 io.cri-containerd.image=managed
registry.test/a/program:old      application/vnd.docker.distribution.manifest.v2+json sha256:bbb 85.0 MiB linux/amd64 io.cri-containerd.image=managed
registry.test/a/program-b:old    application/vnd.docker.distribution.manifest.v2+json sha256:ccc 85.0 MiB linux/amd64 io.cri-containerd.image=managed
sha256:111                       application/vnd.docker.distribution.manifest.v2+json sha256:aaa 85.0 MiB linux/amd64 io.cri-containerd.image=managed
sha256:222                       application/vnd.docker.distribution.manifest.v2+json sha256:bbb 85.0 MiB linux/amd64 io.cri-containerd.image=managed
`
	if got, want := otherTags(listed, "registry.test/a/program:new"), []string{"registry.test/a/program:old", "sha256:222"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	all := []string{"registry.test/a/program:new", "registry.test/a/program:old", "sha256:111", "sha256:222"}
	if got := otherTags(listed, "registry.test/a/program:"); !slices.Equal(got, all) {
		t.Errorf("got %v, want %v", got, all)
	}
}

// All images with the same content share one name by digest. Without it, the CRI plugin has none of
// them.
func TestImageWithTheSameContentLosesOnlyItsName(t *testing.T) {
	const listed = `REF                              TYPE                                                 DIGEST     SIZE      PLATFORMS   LABELS
registry.test/a/program:new      application/vnd.docker.distribution.manifest.v2+json sha256:aaa 85.0 MiB linux/amd64 io.cri-containerd.image=managed
registry.test/a/program:release  application/vnd.docker.distribution.manifest.v2+json sha256:aaa 85.0 MiB linux/amd64 io.cri-containerd.image=managed
sha256:111                       application/vnd.docker.distribution.manifest.v2+json sha256:aaa 85.0 MiB linux/amd64 io.cri-containerd.image=managed
`
	if got, want := otherTags(listed, "registry.test/a/program:new"), []string{"registry.test/a/program:release"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
