package main

import (
	"context"
	"fmt"
	"os"
	"text/tabwriter"

	"storage.liqo.io/sanity-tests/clusters"
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
			state, memory := "not started", ""
			if process, err := cluster.Process(component); err == nil {
				state = "dead"
				if process.Alive() {
					state = fmt.Sprintf("pid %d", process.PID)
					memory = fmt.Sprintf("%d MiB", process.Memory()>>20)
				}
			}
			fmt.Fprintf(out, "  %s/%s\t%s\t%s\n", cluster.Name(), component, state, memory)
		}
		fmt.Fprintf(out, "  kubeconfig\t%s\n  kubectl\t%s\n", cluster.Kubeconfig(), cluster.Kubectl())
	}
	if setting, err := lab.Proxy().Get(ctx); err == nil {
		fmt.Fprintf(out, "faults between the clusters\t%s\n", setting)
	}
	memory, err := lab.Memory()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "memory\t%d MiB in all processes of the lab, %d MiB of it in pods\n", memory.Total>>20, memory.Pods>>20)
	return out.Flush()
}
