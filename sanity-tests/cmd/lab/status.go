package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/machine"
)

func status(ctx context.Context, arguments []string) error {
	if err := noArguments("status", arguments); err != nil {
		return err
	}
	lab, err := clusters.Load()
	if err != nil {
		return err
	}
	return printStatus(ctx, lab)
}

func printStatus(ctx context.Context, lab *clusters.Lab) error {
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for _, cluster := range lab.Clusters() {
		fmt.Fprintf(out, "cluster %s\n", cluster.Name())
		for _, component := range cluster.Components() {
			process, err := cluster.Process(component)
			printProcess(out, cluster.Name()+"/"+component, process, err)
		}
		fmt.Fprintf(out, "  kubeconfig\t%s\n  kubectl\t%s\n", cluster.Kubeconfig(), cluster.Kubectl())
	}
	fmt.Fprintln(out, "between them")
	for _, relay := range lab.Relays() {
		process, err := machine.Find(relay)
		printProcess(out, relay, process, err)
	}
	if setting, err := lab.Proxy().Get(ctx); err == nil {
		fmt.Fprintf(out, "  faults\t%s\n", setting)
	}
	memory, err := lab.Memory()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "memory\t%d MiB in all processes of the lab, %d MiB of it in pods\n", memory.Total>>20, memory.Pods>>20)
	return out.Flush()
}

func printProcess(out io.Writer, name string, process *machine.Process, err error) {
	switch {
	case err != nil:
		fmt.Fprintf(out, "  %s\tnot started\n", name)
	case !process.Alive():
		fmt.Fprintf(out, "  %s\tdead\n", name)
	default:
		fmt.Fprintf(out, "  %s\tpid %d\t%d MiB\n", name, process.PID, process.Memory()>>20)
	}
}
