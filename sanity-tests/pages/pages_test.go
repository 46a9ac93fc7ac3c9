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

func TestWhatCannotBeReadIsAnError(t *testing.T) {
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

// The pages that e2e/pages runs can be read, without a lab.
func TestPagesThatAreRunCanBeRead(t *testing.T) {
	for file, least := range map[string]int{"README.md": 6, "docs/remote/two-clusters.md": 10} {
		text, err := os.ReadFile("../../" + file)
		if err != nil {
			t.Fatal(err)
		}
		steps, err := Steps(string(text), "mermaid")
		if err != nil {
			t.Errorf("%s: %v", file, err)
		}
		commands := 0
		for _, step := range steps {
			commands += len(step.Commands)
		}
		if commands < least {
			t.Errorf("%s has %d commands: is it still read right?", file, commands)
		}
	}
}
