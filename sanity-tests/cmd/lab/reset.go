package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/evidence"
	"storage.liqo.io/sanity-tests/reset"
)

func resetLab(ctx context.Context, arguments []string) error {
	if err := noArguments("reset", arguments); err != nil {
		return err
	}
	lab, err := clusters.Load()
	if err != nil {
		return err
	}
	start := time.Now()
	if err := reset.Run(ctx, lab, os.Stdout); err != nil {
		return fmt.Errorf("the lab is not healthy: %w", err)
	}
	fmt.Printf("the lab is healthy after %s\n", time.Since(start).Round(100*time.Millisecond))
	return nil
}

func copyEvidence(ctx context.Context, arguments []string) error {
	if len(arguments) != 1 {
		return fmt.Errorf("name the directory: lab evidence DIRECTORY")
	}
	lab, err := clusters.Load()
	if err != nil {
		return err
	}
	if err := evidence.Collect(ctx, lab, arguments[0]); err != nil {
		return err
	}
	fmt.Printf("logs and objects of the lab are in %s\n", arguments[0])
	return nil
}
