// Command demo demonstrates the driver: it starts the lab, installs storage and the driver,
// connects the two clusters, and shows a StatefulSet whose claims have the class liqo and whose
// pods run in both. `make demo` runs it; `make demo-down` cleans up.
//
// story.go has the steps in their order; union.go connects and disconnects the clusters.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/storage"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	// The first signal stops the demo and cleans up, the second one ends the process at once.
	context.AfterFunc(ctx, stop)
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	// Before the clusters start, because they and the compilers would slow each other down.
	chapter("The driver is built (minutes the first time, seconds after that)")
	if _, err := driver.Compile(ctx); err != nil {
		return err
	}

	chapter("Two clusters on this machine, with real storage in them")
	lab, err := clusters.Up(ctx, clusters.Options{Progress: os.Stdout})
	if err != nil {
		return err
	}
	if err := storage.InstallAll(ctx, lab, storage.Options{Progress: os.Stdout}); err != nil {
		return err
	}
	story, err := newStory(lab)
	if err != nil {
		return err
	}

	chapter("The driver and its fabric, installed with Helm in the cluster " + home)
	if err := driver.DefineOffloading(ctx, story.home.cluster); err != nil {
		return err
	}
	values := chart.Values{"fabric": driver.Fabric()}
	if err := driver.Install(ctx, story.home.cluster, driver.Options{Progress: os.Stdout, Values: values}); err != nil {
		return err
	}

	// Pods that copy volumes run in the remote cluster, too.
	if err := driver.ImportImage(ctx, story.remote.cluster); err != nil {
		return err
	}

	chapter("The driver learns of the cluster " + remote + ", and a namespace is offloaded")
	defer func() {
		title := "The clusters are disconnected"
		if err != nil {
			title = "The story ends early"
		}
		chapter(title)
		err = errors.Join(err, story.disconnect(ctx))
		if err == nil {
			story.suggest()
		}
	}()
	if err := story.connect(ctx); err != nil {
		return err
	}
	return story.runSteps(ctx)
}

// suggest prints what to try next in the lab, which keeps running.
func (s *story) suggest() {
	chapter("The lab keeps running. Try next:")
	line("nodes", "%s get nodes", s.home.cluster.Kubectl())
	line("a claim", "%s apply -f -   # and paste the claim and pod of README.md", s.home.cluster.Kubectl())
	line("doctor", "target/debug/liqo-csi doctor --kubeconfig %s", s.home.cluster.Kubeconfig())
	fmt.Println("\n  make demo-down ends it.")
}

func chapter(title string) { fmt.Printf("\n\033[1m%s\033[0m\n", title) }

// line prints a fact about a subject.
func line(subject, format string, args ...any) {
	fmt.Printf("  %-12s %s\n", subject, fmt.Sprintf(format, args...))
}
