// Command lab starts, inspects, disturbs and ends the lab.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"storage.liqo.io/sanity-tests/clusters"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch args[0] {
	case "up":
		_, err := clusters.Up(ctx, clusters.Options{Progress: os.Stdout})
		return err
	case "down":
		return clusters.Down(ctx)
	}
	return fmt.Errorf("unknown")
}
