package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/components"
	"storage.liqo.io/sanity-tests/storage"
)

func up(ctx context.Context, arguments []string) error {
	options, withStorage, err := parseUp(arguments)
	if err != nil {
		return err
	}
	start := time.Now()
	lab, err := clusters.Up(ctx, options)
	if err == nil && withStorage {
		err = storage.InstallAll(ctx, lab, storage.Options{Progress: os.Stdout})
	}
	if err != nil {
		if _, nothing := clusters.Load(); nothing == nil {
			err = fmt.Errorf("%w\nwhat did start is left as it is: `lab status` shows it, `lab up` tries again, `lab down` ends it", err)
		}
		return err
	}
	fmt.Printf("the lab is up after %s\n\n", time.Since(start).Round(100*time.Millisecond))
	return printStatus(ctx, lab)
}

func parseUp(arguments []string) (options clusters.Options, withStorage bool, err error) {
	flags := flag.NewFlagSet("lab up", flag.ContinueOnError)
	names := flags.String("clusters", "home,remote", "the clusters; the first is where users work")
	flags.BoolVar(&withStorage, "storage", true, "install the reference driver, local-path and static volumes")
	nodes, quick, ports := map[string]*int{}, map[string]*int{}, map[string]*int{}
	for _, spec := range clusters.DefaultClusters() {
		nodes[spec.Name] = flags.Int(spec.Name+"-nodes", spec.Nodes, "number of nodes of cluster "+spec.Name)
		quick[spec.Name] = flags.Int(spec.Name+"-quick-nodes", 0, "number of these nodes whose kubelet updates their status every second instead of every ten")
		ports[spec.Name] = flags.Int(spec.Name+"-port", 0, "port on 127.0.0.1 of the API server of cluster "+spec.Name+" (0: a free one)")
	}
	if err := flags.Parse(arguments); err != nil {
		return options, false, err
	}
	if flags.NArg() > 0 {
		return options, false, fmt.Errorf("lab up takes no argument %q", flags.Arg(0))
	}
	options.Progress = os.Stdout
	for name := range strings.SplitSeq(*names, ",") {
		spec := clusters.ClusterSpec{Name: name, Nodes: 1}
		if nodes[name] != nil {
			spec.Nodes, spec.QuickNodes, spec.Port = *nodes[name], *quick[name], *ports[name]
		}
		options.Clusters = append(options.Clusters, spec)
	}
	return options, withStorage, nil
}

func build(ctx context.Context, arguments []string) error {
	compile := components.Build
	if len(arguments) == 1 && arguments[0] == "liqo" {
		compile, arguments = components.BuildLiqo, nil
	}
	if len(arguments) == 1 && arguments[0] == "e2e" {
		compile, arguments = components.BuildE2E, nil
	}
	if err := noArguments("build", arguments); err != nil {
		return err
	}
	start := time.Now()
	binaries, err := compile(ctx, os.Stdout)
	if err != nil {
		return err
	}
	fmt.Printf("%s (%s)\n", binaries, time.Since(start).Round(time.Second))
	return nil
}

func down(ctx context.Context, arguments []string) error {
	if err := noArguments("down", arguments); err != nil {
		return err
	}
	start := time.Now()
	if err := clusters.Down(ctx); err != nil {
		return err
	}
	fmt.Printf("the lab is down after %s\n", time.Since(start).Round(100*time.Millisecond))
	return nil
}

func noArguments(name string, arguments []string) error {
	if len(arguments) > 0 {
		return fmt.Errorf("lab %s takes no argument %q", name, arguments[0])
	}
	return nil
}
