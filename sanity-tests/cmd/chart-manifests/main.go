// Command chart-manifests renders deploy/manifests from the chart. A test fails
// when the two differ.
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
	return os.WriteFile(helm.ManifestsFile(), manifests, 0o644)
}
