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
	"time"
)

// SeedVariable gives the seed, to repeat a run.
const SeedVariable = "LIQO_CSI_SEED"

// Seed is the number that every choice follows from: the variable's, else one made
// of the commit that is checked out.
var Seed = sync.OnceValue(func() int64 {
	if given, err := strconv.ParseInt(os.Getenv(SeedVariable), 10, 64); err == nil && given > 0 {
		return given
	}
	commit, err := exec.Command("git", "rev-parse", "--short=12", "HEAD").Output()
	if err == nil {
		if made, err := strconv.ParseInt(strings.TrimSpace(string(commit)), 16, 64); err == nil {
			return made
		}
	}
	return time.Now().UnixNano() // an archive without history
})

// Chosen says whether a test of this name is among the one in so many that the seed
// chooses.
func Chosen(seed int64, name string, parts int) bool {
	hash := fnv.New32a()
	hash.Write([]byte(name)) // never fails
	return Part(seed+int64(hash.Sum32()), parts) == 0
}

// Part is which of this many parts the seed chooses, counted from 0.
func Part(seed int64, parts int) int { return int(seed % int64(parts)) }
