package pages

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

const page = "# A page\n" +
	"\n" +
	"```sh\n" + // line 3
	"make image    # takes a while\n" +
	"# a comment\n" +
	"\n" +
	"kubectl apply -f - <<'END'\n" +
	"kind: Pod   # << not a here-document\n" +
	"END\n" +
	"helm install a \\\n" +
	"  --wait\n" +
	"```\n" +
	"\n" +
	"Then:\n" +
	"\n" +
	"```text\n" +
	"NAME    STATUS   AGE   VOLUME\n" +
	"diary   Bound    7s    pvc-ab…\n" +
	"```\n" +
	"\n" +
	"1. In a list:\n" +
	"\n" +
	"   ```sh\n" +
	"   cat <<END | sort\n" +
	"     b\n" +
	"   END\n" +
	"   ```\n" +
	"\n" +
	"```mermaid\n" +
	"flowchart\n" +
	"```\n"

func TestStepsAreReadInTheOrderOfThePage(t *testing.T) {
	got, err := Steps(page, "mermaid")
	if err != nil {
		t.Fatal(err)
	}
	want := []Step{
		{
			Commands: []Command{
				{4, "make image    # takes a while\n"},
				{7, "kubectl apply -f - <<'END'\nkind: Pod   # << not a here-document\nEND\n"},
				{10, "helm install a \\\n  --wait\n"},
			},
			Shown: "NAME    STATUS   AGE   VOLUME\ndiary   Bound    7s    pvc-ab…\n",
		},
		{Commands: []Command{{24, "cat <<END | sort\n  b\nEND\n"}}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
}

func TestUnparsablePageIsAnError(t *testing.T) {
	for name, one := range map[string]struct{ page, says string }{
		"no language":         {"```\nls\n```\n", "line 2"},
		"another language":    {"```yaml\na: b\n```\n", "yaml"},
		"output of nothing":   {"```text\na\n```\n", "line 2"},
		"output of output":    {"```sh\nls\n```\n```text\na\n```\n```text\nb\n```\n", "line 8"},
		"no end":              {"```sh\nls\n", "does not end"},
		"block in a block":    {"```sh\nls\n```sh\n", "line 3"},
		"document of no end":  {"```sh\ncat <<END\na\n```\n", "line 2: the command does not end"},
		"continued to no end": {"```sh\nls \\\n```\n", "line 2: the command does not end"},
	} {
		if _, err := Steps(one.page, "mermaid"); err == nil || !strings.Contains(err.Error(), one.says) {
			t.Errorf("%s: want an error that says %q, got %v", name, one.says, err)
		}
	}
}

func TestOutputIsComparedByItsWords(t *testing.T) {
	const shown = "NAME    STATUS   AGE   VOLUME\ndiary   Bound    7s    pvc-ab…\n"
	if missing := Missing(shown, "NAME STATUS VOLUME AGE\ndiary Bound pvc-12 3m"); missing != nil {
		t.Errorf("missing: %q", missing)
	}
	want := []string{"Bound"}
	if missing := Missing(shown, "NAME STATUS VOLUME AGE\ndiary Pending 3m"); !reflect.DeepEqual(missing, want) {
		t.Errorf("missing: %q, want %q", missing, want)
	}
}

func TestNewWordsAreThoseThatKubernetesDoesNotHave(t *testing.T) {
	const page = "# Twins\n\nA pod and its Claim, with `--server URL` or [a twin](pages.go); not a twinge.\n" +
		"\n```sh\nhelm install liqo-csi chart-1.tgz --set fabric.enabled=true --wait\nliqo-csi connect a --remote-context b --namespace c\n```\n" +
		"\n```text\nNAME READINESS GATES REAL CLASS\n```\n\n```sh\nkubectl label node liqo.io/a=b    # fabric, in a command\n```\n"
	const glossary = "| word | meaning |\n|---|---|\n| twin, pages | the claim |\n| gate (of a move) | a |\n| real class, fabric | b |\n"
	for last, want := range map[string]string{
		"helm install":  "--remote-context, --server, connect, fabric.enabled, liqo-csi, real class, twin",
		"kubectl label": "--remote-context, --server, connect, fabric.enabled, liqo-csi, liqo.io/a, real class, twin",
	} {
		text, err := Through(page, last)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(Words(text, Glossary(glossary)), ", "); got != want {
			t.Errorf("through %q: got %s, want %s", last, got, want)
		}
	}
	if _, err := Through(page, "kubectl delete"); err == nil {
		t.Error("a missing command is found")
	}
}

// The pages that e2e/pages runs can be parsed, and have as many commands and new words as listed
// here: a change that requires more of a new user must be intentional.
func TestTestedPagesHaveNoMoreCommandsAndNewWords(t *testing.T) {
	glossary, err := os.ReadFile("../../docs/glossary.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range []struct {
		file string
		// last is the command after which pods use volumes (the first one of the README, a StatefulSet over both clusters), or
		// the driver is installed.
		last string
		// until is the number of commands up to the last one, which the title of the second page
		// states, and all the number of all commands of the page.
		until, all int
		words      string
	}{
		{
			"README.md", "kubectl apply -f -", 6, 8,
			"completion, copy, fabric, home cluster, image.repository, liqo, liqo-csi, liqo-storage, move, offload, real class, " +
				"real driver, remote cluster, remote pod, twin, virtual node, volumes",
		},
		{
			"docs/remote/two-clusters.md", "kubectl apply -n shop -f -", 4, 16,
			"--fabric, --remote-context, --server, connect, fabric, fabric.enabled, liqo, liqo-csi, liqo-storage, move, offload, " +
				"real class, topology.storage.liqo.io/cluster, twin, volumes",
		},
		{"docs/gitops.md", "kubectl apply -f liqo-csi.yaml", 4, 9, "doctor, fabric, fabric.enabled, fabric.policies, liqo-csi, " +
			"liqo-csi-controller, liqo-csi-fabric, liqo-csi-node, liqo-storage"},
	} {
		text, err := os.ReadFile("../../" + page.file)
		if err != nil {
			t.Fatal(err)
		}
		steps, err := Steps(string(text), "mermaid")
		if err != nil {
			t.Errorf("%s: %v", page.file, err)
		}
		until, all := 0, 0
		for _, step := range steps {
			for _, command := range step.Commands {
				if all++; strings.HasPrefix(command.Text, page.last) {
					until = all
				}
			}
		}
		if until != page.until || all != page.all {
			t.Errorf("%s has %d commands until %q, not %d, and %d in all, not %d", page.file, until, page.last, page.until, all, page.all)
		}
		read, err := Through(string(text), page.last)
		if err != nil {
			t.Fatalf("%s: %v", page.file, err)
		}
		words := Words(read, Glossary(string(glossary)))
		if got := strings.Join(words, ", "); got != page.words {
			t.Errorf("%s: until %q a reader has to learn these %d words:\n%s\nand not these:\n%s", page.file, page.last, len(words), got, page.words)
		}
	}
}
