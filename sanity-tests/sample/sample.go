// Package sample has the seed for everything that differs between runs: which tests `make test`
// runs, and random choices in tests. It depends on the number of commits, so that runs of
// successive commits differ and those of one commit do not.
package sample

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
)

// SeedVariable is the environment variable with a seed, to repeat a run.
const SeedVariable = "LIQO_CSI_SEED"

// Seed is the variable's, else the number of commits in the history, so that successive
// commits have successive seeds, else 1.
var Seed = sync.OnceValue(func() int64 { return seedOf(os.Getenv(SeedVariable), Commits()) })

func seedOf(variable string, commits int) int64 {
	if given, err := strconv.ParseInt(variable, 10, 64); err == nil && given > 0 {
		return given
	}
	return int64(max(1, commits))
}

// Commits returns the number of commits in the history, and 0 without one, as in an archive of the
// sources.
func Commits() int {
	out, err := exec.Command("git", "rev-list", "--count", "HEAD").Output()
	if err != nil {
		return 0
	}
	count, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		return 0
	}
	return count
}
