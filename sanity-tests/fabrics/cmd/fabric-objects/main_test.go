package main

import (
	"io"
	"strings"
	"testing"
)

func TestInvalidArgumentsAreReported(t *testing.T) {
	for line, want := range map[string]string{
		"":                                     "a fabric and a verb",
		"liqo":                                 "a fabric and a verb",
		"liqo pear":                            "liqo pear is unknown; known are: liqo install, liqo peer",
		"liqo peer":                            "--kubeconfig is missing",
		"--kubeconfig f liqo peer":             "--cluster-id is missing",
		"liqo peer --kubeconfig f --node n":    "--cluster-id is missing",
		"--kubeconfig f liqo map":              "needs HOME_NS=REMOTE_NS",
		"--kubeconfig f liqo peer a=b":         `takes no "a=b"`,
		"--kubeconfig f kosmos join --node n":  "not defined: -node",
		"--kubeconfig /none liqo install":      "/none",
		"--kubeconfig f liqo identity":         "--home-id is missing",
		"--kubeconfig f kosmos join":           "--cluster is missing",
		"--kubeconfig f liqo peer --help me":   "help requested",
		"--kubeconfig f --timeout x liqo peer": "invalid value",
	} {
		err := run(t.Context(), strings.Fields(line), io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", line, err, want)
		}
	}
}
