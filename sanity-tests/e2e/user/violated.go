package user

import "testing"

// Violation begins what a test says that has observed something false: data that differ, an object
// that was leaked or lost, a pod that ran twice, access that was granted. Such a test is never run
// again to see whether it passes then, as one is whose wait ran out.
const Violation = "VIOLATED: "

// Violated fails a test with what it has observed, and lets it go on.
func Violated(t testing.TB, format string, args ...any) {
	t.Helper()
	t.Errorf(Violation+format, args...)
}

// ViolatedNow fails a test with what it has observed, and ends it.
func ViolatedNow(t testing.TB, format string, args ...any) {
	t.Helper()
	t.Fatalf(Violation+format, args...)
}
