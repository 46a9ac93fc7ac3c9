package release

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/images"
)

func dockerfile(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Nothing here can build it, so at least it must say the same as what is built.
func TestDockerfileHasTheSameContent(t *testing.T) {
	text := dockerfile(t)
	for _, want := range []string{
		`ARG TOOLS="` + strings.Join(driver.Tools, " ") + `"`,
		"apt-get install -y --no-install-recommends " + strings.Join(packages, " "),
		"cp " + strings.Join(settings, " ") + ` "$image"/etc/`,
		"USER " + user,
		`ENTRYPOINT ["` + driver.Program + `"]`,
		"ENV " + images.New("").Env[0],
		// A build of the whole workspace would have features in it that only tests need.
		"cargo build --locked --release --package liqo-csi \\\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the Dockerfile does not say %s", want)
		}
	}
}

// The script of the Dockerfile collects programs of this machine, which then run where nothing else is.
func TestDockerfileCollectsWhatProgramsNeed(t *testing.T) {
	found := regexp.MustCompile(`(?s)<<'END' /collect\n(.*?)\nEND\n`).FindStringSubmatch(dockerfile(t))
	if found == nil {
		t.Fatal("the Dockerfile has no script /collect")
	}
	folder := t.TempDir()
	ours, err := exec.LookPath("env")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(ours, filepath.Join(folder, "liqo-csi")); err != nil {
		t.Fatal(err)
	}
	// Of a package that this machine need not have.
	script := strings.Replace(found[1], " /etc/netconfig", "", 1)
	root := filepath.Join(folder, "image")
	collect := exec.CommandContext(t.Context(), "sh", "-c", script, "collect", root, "mkfs.ext4", "mkfs.xfs")
	collect.Env = append(os.Environ(), "PATH="+folder+":/usr/sbin:/usr/bin:/sbin:/bin")
	if out, err := collect.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for program, flag := range map[string]string{"mkfs.ext4": "-V", "mkfs.xfs": "-V", driver.Program: "--version"} {
		if out, err := runIn(t.Context(), root, program, flag); err != nil {
			t.Errorf("%s does not run: %v: %s", program, err, out)
		}
	}
	accounts := t.TempDir()
	if _, err := images.New("").Unpack(accounts); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"etc/passwd", "etc/group"} {
		want, err := os.ReadFile(filepath.Join(accounts, file))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(root, file)); err != nil || string(got) != string(want) {
			t.Errorf("%s: %q, %v; want %q", file, got, err, want)
		}
	}
}
