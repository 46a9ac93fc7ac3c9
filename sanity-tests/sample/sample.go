// Package sample says what a run that does not run everything leaves out: every
// choice follows from one number, so that a run can be repeated, and the runs of
// successive commits choose differently.
package sample

import (
	"hash/fnv"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
)

// SeedVariable gives the seed, to repeat a run.
const SeedVariable = "LIQO_CSI_SEED"

// Seed is the number that every choice follows from: the variable's, else the number of
// commits in the history, so that successive commits have successive seeds, else 1.
var Seed = sync.OnceValue(func() int64 { return seedOf(os.Getenv(SeedVariable), Commits()) })

func seedOf(variable string, commits int) int64 {
	if given, err := strconv.ParseInt(variable, 10, 64); err == nil && given > 0 {
		return given
	}
	return int64(max(1, commits))
}

// Commits is how many the history has that is checked out, and 0 in an archive without one.
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

// Chosen says whether a test of this name is among the one in so many that the seed
// chooses.
func Chosen(seed int64, name string, parts int) bool {
	hash := fnv.New32a()
	hash.Write([]byte(name)) // never fails
	return Part(seed+int64(hash.Sum32()), parts) == 0
}

// Part is which of this many parts the seed chooses, counted from 0.
func Part(seed int64, parts int) int { return int(seed % int64(parts)) }
