// Package liqo runs Liqo itself in two clusters of the lab: the unmodified programs and Helm chart
// of its Go module, peered by its liqoctl. Its network is disabled (pods need none to use their
// volumes), and so is its storage, which the driver replaces.
//
// Module fabrics, in contrast, only creates the objects that Liqo would create.
package liqo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/components"
)

// Names of the clusters in Liqo. The virtual node has the name of the remote cluster.
const (
	HomeID   = "lab-home"
	RemoteID = "lab-remote"
)

// TenantNamespace is Liqo's namespace at home for the remote cluster.
const TenantNamespace = "liqo-tenant-" + RemoteID

const (
	modulePath = "github.com/liqotech/liqo"
	// liqoctl uses this release and namespace.
	release   = "liqo"
	namespace = "liqo"
)

// Peering is Liqo in two clusters: home is the consumer, remote the provider.
type Peering struct {
	home, remote *clusters.Cluster
	programs     components.Binaries
	source       string
	progress     io.Writer
	webhooks     []*webhook
	// Version is the version of Liqo.
	Version string
}

// Start installs Liqo in both clusters and peers them with further arguments of liqoctl peer. It continues an interrupted
// start. After an error, too, it returns a Peering to Stop.
func Start(ctx context.Context, home, remote *clusters.Cluster, progress io.Writer, arguments ...string) (*Peering, error) {
	p := &Peering{home: home, remote: remote, progress: progress}
	began := time.Now()
	step := func(format string, arguments ...any) {
		fmt.Fprintf(progress, "%6.1fs  liqo: %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, arguments...))
	}
	if err := p.find(ctx); err != nil {
		return p, err
	}
	step("%s %s, programs at hand", modulePath, p.Version)
	for _, one := range []struct {
		cluster *clusters.Cluster
		id      string
	}{{remote, RemoteID}, {home, HomeID}} {
		if err := p.install(ctx, one.cluster, one.id); err != nil {
			return p, fmt.Errorf("install Liqo in cluster %s: %w", one.cluster.Name(), err)
		}
		step("%s: runs as cluster %s", one.cluster.Name(), one.id)
	}
	said, err := p.Ctl(ctx, append([]string{"peer", "--remote-kubeconfig", remote.Kubeconfig(), "--networking-disabled"}, arguments...)...)
	if err != nil {
		return p, err
	}
	fmt.Fprint(progress, said)
	step("%s consumes %s", HomeID, RemoteID)
	return p, nil
}

func (p *Peering) find(ctx context.Context) (err error) {
	if p.programs, err = components.BuildLiqo(ctx, p.progress); err != nil {
		return err
	}
	if p.source, err = components.Source(ctx, "liqo", modulePath); err != nil {
		return err
	}
	p.Version, err = components.Version(ctx, "liqo", modulePath)
	return err
}

// Stop ends the peering, and removes Liqo with all its kinds from both clusters.
func (p *Peering) Stop(ctx context.Context) error {
	var errs []error
	if len(p.webhooks) == 2 {
		_, err := p.Ctl(ctx, "unpeer", "--remote-kubeconfig", p.remote.Kubeconfig(), "--delete-namespaces")
		errs = append(errs, err)
		// They have a finalizer of Liqo's controller manager, which is uninstalled next.
		for _, cluster := range []*clusters.Cluster{p.home, p.remote} {
			errs = append(errs, kubectl(ctx, cluster, "delete", "foreignclusters.core.liqo.io", "--all"))
		}
	}
	for _, cluster := range []*clusters.Cluster{p.home, p.remote} {
		errs = append(errs, p.uninstall(ctx, cluster))
	}
	for _, webhook := range p.webhooks {
		errs = append(errs, webhook.stop(ctx))
	}
	return errors.Join(errs...)
}

// Ctl runs liqoctl in the home cluster and returns its output.
func (p *Peering) Ctl(ctx context.Context, arguments ...string) (string, error) {
	arguments = append(arguments, "--kubeconfig", p.home.Kubeconfig(), "--skip-confirm")
	fmt.Fprintln(p.progress, "liqoctl", strings.Join(arguments, " "))
	out, err := exec.CommandContext(ctx, p.programs.Path("liqoctl"), arguments...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("liqoctl %s: %w: %s", arguments[0], err, out)
	}
	return string(out), nil
}
