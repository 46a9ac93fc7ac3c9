// Command lab starts, inspects, disturbs and stops the lab, with package clusters, which tests use
// directly.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

// command is a subcommand.
type command struct {
	name, arguments, purpose string
	run                      func(context.Context, []string) error
}

func commands() []command {
	return []command{
		{"up", "[--clusters home,remote] [--home-nodes 2] [--remote-nodes 1] …", "start the lab, or what of it does not run", up},
		{"build", "[liqo|e2e]", "only build what the lab runs, or what Liqo is in it, or Kubernetes' own tests, or find it in the cache", build},
		{"down", "", "end the lab and return the machine to what it was", down},
		{"status", "", "what runs, where, and how much memory it takes", status},
		{"kubectl", "CLUSTER ARGUMENT…", "kubectl with the administrator's rights", kubectl},
		{"logs", "COMPONENT", "the log of a component (names: lab status)", logs},
		{"kill", "COMPONENT", "end a component as a crash would (kill -9)", kill},
		{"restart", "COMPONENT", "start a component again", restart},
		{"enter", "NODE [COMMAND…]", "a shell, or a command, inside a node", enter},
		{"partition", "on|off", "cut or mend the link between the clusters", partition},
		{"reset", "", "put a running lab back to what a suite of tests expects, whatever the one before was killed at", resetLab},
		{"evidence", "DIRECTORY", "copy logs and objects of both clusters there, without Secrets", copyEvidence},
		{"faults", "[pass|hang|half-open|reset|delay --up 1s --down 1s]", "show or set what the proxy between the clusters does", setFaults},
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, arguments []string) error {
	if len(arguments) > 0 {
		for _, known := range commands() {
			if known.name == arguments[0] {
				return known.run(ctx, arguments[1:])
			}
		}
	}
	return fmt.Errorf("say what to do:\n%s", usage())
}

func usage() string {
	var text strings.Builder
	for _, known := range commands() {
		fmt.Fprintf(&text, "  lab %s %s\n        %s\n", known.name, known.arguments, known.purpose)
	}
	return text.String()
}
