// Command demo shows the driver at work, from nothing: it starts the lab, puts
// storage and the driver into it, and tells what becomes of a StatefulSet whose
// claims are of class liqo. `make demo` runs it; `make demo-down` cleans up.
//
// story.go is what is shown, in the order in which it happens.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/storage"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	chapter("Two clusters on this machine, with real storage in them")
	lab, err := clusters.Up(ctx, clusters.Options{Progress: os.Stdout})
	if err != nil {
		return err
	}
	if err := storage.InstallAll(ctx, lab, storage.Options{Progress: os.Stdout}); err != nil {
		return err
	}
	home := lab.Clusters()[0]

	chapter("The driver, installed with Helm in the cluster " + home.Name())
	if err := driver.Install(ctx, home, driver.Options{Progress: os.Stdout}); err != nil {
		return err
	}

	story, err := newStory(lab, home)
	if err != nil {
		return err
	}
	if err := story.tell(ctx); err != nil {
		return err
	}
	fmt.Printf("\nThe lab keeps running. Look around with %s; make demo-down ends it.\n", home.Kubectl())
	return nil
}

func chapter(title string) { fmt.Printf("\n\033[1m%s\033[0m\n", title) }

// line is one fact: what it is about, and what there is to see.
func line(subject, format string, args ...any) {
	fmt.Printf("  %-12s %s\n", subject, fmt.Sprintf(format, args...))
}
