// Command relay forwards TCP connections between network namespaces; the lab
// starts it in the background. Its only argument is a file that describes a
// faults.Relays.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"storage.liqo.io/sanity-tests/faults"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "relay:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 2 {
		return fmt.Errorf("usage: relay FILE")
	}
	content, err := os.ReadFile(os.Args[1])
	if err != nil {
		return err
	}
	var relays faults.Relays
	if err := json.Unmarshal(content, &relays); err != nil {
		return fmt.Errorf("read %s: %w", os.Args[1], err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return relays.Serve(ctx)
}
