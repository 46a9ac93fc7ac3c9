package evidence

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestEndOfALogIsKept(t *testing.T) {
	from, into := filepath.Join(t.TempDir(), "log"), filepath.Join(t.TempDir(), "below", "log")
	if err := os.WriteFile(from, append(bytes.Repeat([]byte("old\n"), maxFile/4), "new\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := keepEnd(from, into); err != nil {
		t.Fatal(err)
	}
	kept, err := os.ReadFile(into)
	if err != nil || len(kept) > maxFile+100 || !bytes.HasPrefix(kept, []byte("[4 bytes are left out]\n")) || !bytes.HasSuffix(kept, []byte("old\nnew\n")) {
		t.Errorf("%d bytes are kept: %.60q, %v", len(kept), kept, err)
	}
	if err := keepEnd(from+"-that-is-not-there", into); err != nil {
		t.Error(err)
	}
}

func TestBeginningOfAListIsKept(t *testing.T) {
	var out bytes.Buffer
	b := truncated{to: &out}
	for range 3 {
		text := []byte(strings.Repeat("a", maxFile/2+1))
		if n, err := b.Write(text); n != len(text) || err != nil {
			t.Fatal(n, err)
		}
	}
	if !strings.HasSuffix(out.String(), "a\n# cut here\n") || strings.Count(out.String(), "a") != maxFile {
		t.Errorf("%d bytes are kept", out.Len())
	}
}

func TestSecretsAreNotRead(t *testing.T) {
	for name, args := range commands {
		if strings.Contains(strings.ToLower(strings.Join(args, " ")), "secret") {
			t.Errorf("%s has Secrets", name)
		}
	}
}
