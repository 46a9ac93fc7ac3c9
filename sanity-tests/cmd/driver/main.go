// Command driver installs the driver into the lab's first cluster, or removes it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/driver"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, strings.Join(os.Args[1:], " ")); err != nil {
		fmt.Fprintln(os.Stderr, "driver:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, verb string) error {
	lab, err := clusters.Load()
	if err != nil {
		return err
	}
	home := lab.Clusters()[0]
	switch verb {
	case "install":
		return driver.Install(ctx, home, driver.Options{Progress: os.Stdout})
	case "uninstall":
		return driver.Uninstall(ctx, home)
	}
	return fmt.Errorf("unknown verb %q: say install or uninstall", verb)
}
