// Command chart-manifests renders deploy/manifests from the chart, and the manifests that liqo-csi
// connect creates in a remote cluster. A test fails when they differ.
package main

import (
	"context"
	"fmt"
	"os"

	"storage.liqo.io/sanity-tests/chart"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "chart-manifests:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	helm, err := chart.New(ctx)
	if err != nil {
		return err
	}
	manifests, err := helm.Manifests(ctx)
	if err != nil {
		return err
	}
	if err := os.WriteFile(helm.ManifestsFile(), manifests, 0o644); err != nil {
		return err
	}
	for _, level := range chart.Levels {
		manifests, err := helm.RemoteManifests(ctx, level)
		if err != nil {
			return err
		}
		if err := os.WriteFile(helm.RemoteManifestsFile(level), manifests, 0o644); err != nil {
			return err
		}
	}
	return nil
}
