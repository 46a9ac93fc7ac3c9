package user

import "testing"

// Violation is the prefix of messages about a violated invariant: data that differ, an object that was
// leaked or lost, a pod that ran twice, access that was granted. cmd/suites does not retry such tests.
const Violation = "VIOLATED: "

// Violated reports a violation, and continues the test.
func Violated(t testing.TB, format string, args ...any) {
	t.Helper()
	t.Errorf(Violation+format, args...)
}

// ViolatedNow reports a violation, and ends the test.
func ViolatedNow(t testing.TB, format string, args ...any) {
	t.Helper()
	t.Fatalf(Violation+format, args...)
}
