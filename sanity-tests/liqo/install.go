package liqo

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/images"
)

// programs are those that Liqo's chart runs when its network and its storage are disabled. Liqo
// starts a virtual kubelet for each virtual node.
var programs = []string{"liqo-controller-manager", "crd-replicator", "webhook", "virtual-kubelet"}

// Paths of the chart and of its CustomResourceDefinitions in Liqo's module.
const (
	chartFolder       = "deployments/liqo"
	definitionsFolder = chartFolder + "/charts/liqo-crds/crds"
)

func (p *Peering) install(ctx context.Context, cluster *clusters.Cluster, id string) error {
	if err := p.importImages(ctx, cluster); err != nil {
		return err
	}
	helm, err := p.helm(ctx, cluster)
	if err != nil {
		return err
	}
	values, err := p.values(cluster, id)
	if err != nil {
		return err
	}
	if err := helm.Install(ctx, release, namespace, values); err != nil {
		return err
	}
	webhook, err := serveWebhook(ctx, cluster)
	if err != nil {
		return err
	}
	p.webhooks = append(p.webhooks, webhook)
	return nil
}

// importImages imports images with Liqo's programs, at the paths and under the names of the
// published images.
func (p *Peering) importImages(ctx context.Context, cluster *clusters.Cluster) error {
	var made []*images.Image
	for _, program := range programs {
		inside := "/usr/bin/" + program
		image := images.New("ghcr.io/liqotech/"+program+":"+p.Version, inside).AddBinary(p.programs.Path(program), inside)
		if err := image.Err(); err != nil {
			return err
		}
		made = append(made, image)
	}
	return cluster.Import(ctx, made...)
}

func (p *Peering) helm(ctx context.Context, cluster *clusters.Cluster) (*chart.Helm, error) {
	helm, err := chart.NewFor(ctx, filepath.Join(p.source, chartFolder))
	if err != nil {
		return nil, err
	}
	helm.Kubeconfig = cluster.Kubeconfig()
	return helm, nil
}

// values returns the chart's values: those that docs/remote/liqo.md requires for the driver, those
// that disable what needs Liqo's network, and those that describe the cluster.
func (p *Peering) values(cluster *clusters.Cluster, id string) (chart.Values, error) {
	server, err := serverOf(cluster, p.home)
	if err != nil {
		return nil, err
	}
	var podCIDRs []string
	for _, node := range cluster.Nodes() {
		podCIDRs = append(podCIDRs, node.PodCIDR)
	}
	return chart.Values{
		"tag":       p.Version,
		"discovery": chart.Values{"config": chart.Values{"clusterID": id}},
		"apiServer": chart.Values{"address": server},
		"ipam":      chart.Values{"podCIDRs": podCIDRs, "serviceCIDR": cluster.ServiceCIDR()},

		"storage": chart.Values{"enabled": false},
		"offloading": chart.Values{
			"reflection":          chart.Values{"persistentvolumeclaim": chart.Values{"workers": 0}},
			"disableNetworkCheck": true,
		},

		"networking": chart.Values{
			"enabled": false, "reflectIPs": false,
			"gateway": chart.Values{"mssclamp": chart.Values{"enabled": false}},
		},
		"metricAgent": chart.Values{"enabled": false},
		"telemetry":   chart.Values{"enabled": false},
		"proxy":       chart.Values{"enabled": false},
	}, nil
}

// serverOf returns the URL of a cluster's API server for pods of the home cluster. Liqo detects the
// URL of its own cluster itself.
func serverOf(cluster, home *clusters.Cluster) (string, error) {
	if cluster == home {
		return "", nil
	}
	config, err := clientcmd.LoadFromFile(cluster.ProxyKubeconfig())
	if err != nil {
		return "", fmt.Errorf("find the address of cluster %s: %w", cluster.Name(), err)
	}
	return config.Clusters[config.Contexts[config.CurrentContext].Cluster].Server, nil
}

// uninstall uninstalls the Helm release and deletes the kinds and the namespace, which Helm keeps.
// Liqo's own uninstaller is a hook whose program would have to be built too; it only checks that no
// peering is left.
func (p *Peering) uninstall(ctx context.Context, cluster *clusters.Cluster) error {
	helm, err := p.helm(ctx, cluster)
	if err != nil {
		return err
	}
	return errors.Join(
		helm.Uninstall(ctx, release, namespace, "--no-hooks"),
		kubectl(ctx, cluster, "delete", "--ignore-not-found", "-f", filepath.Join(p.source, definitionsFolder)),
		kubectl(ctx, cluster, "delete", "--ignore-not-found", "namespace", namespace),
	)
}

func kubectl(ctx context.Context, cluster *clusters.Cluster, arguments ...string) error {
	if out, err := exec.CommandContext(ctx, cluster.Kubectl(), arguments...).CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl %s in cluster %s: %w: %s", arguments[0], cluster.Name(), err, out)
	}
	return nil
}
