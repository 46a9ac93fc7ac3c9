package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"storage.liqo.io/fabrics/liqo"
)

var liqoVerbs = []verb{
	{"liqo", "install", "", "install Liqo's definitions in a home cluster, without any peering", liqoInstall},
	{"liqo", "peer", "", "peer a home cluster with a remote one, for one virtual node (creates no Node)", liqoPeer},
	{"liqo", "map", "HOME_NS=REMOTE_NS[:PHASE]...", "set mappings; PHASE: Accepted (default), CreationLoopBackOff, Terminating, or Requested for no status yet", liqoMap},
	{"liqo", "unmap", "HOME_NS...", "remove mappings", liqoUnmap},
	{"liqo", "rotate", "", "rewrite the Secrets of a peering in place", liqoRotate},
	{"liqo", "unpeer", "", "delete all objects of the peering with a cluster, with its tenant namespace", liqoUnpeer},
	{"liqo", "remove", "", "delete all peerings and Liqo's definitions", liqoRemove},
	{"liqo", "remote-role", "", "in a remote cluster: grant a home cluster Liqo's rights in namespaces (created if absent)", liqoRemoteRole},
	{"liqo", "remote-remove", "", "in a remote cluster: revoke all these rights of a home cluster", liqoRemoteRemove},
	{"liqo", "identity", "", "in a remote cluster: issue a certificate for a home cluster and write its kubeconfig", liqoIdentity},
}

func liqoInstall(*flag.FlagSet) action { return inLiqoHome(liqo.Home.Install) }

func liqoRemove(*flag.FlagSet) action { return inLiqoHome(liqo.Home.Remove) }

func liqoPeer(flags *flag.FlagSet) action {
	var p liqo.Peering
	var file string
	var classes list
	clusterIDFlag(flags, &p.ClusterID)
	flags.StringVar(&p.Node, "node", "", "`NAME` of the virtual node")
	remoteKubeconfigFlag(flags, &file)
	flags.Var(&classes, "storage-class", "`CLASS` of the remote cluster, may be repeated; the first is the default")
	flags.StringVar(&p.TenantNamespace, "tenant-namespace", "", "`NAMESPACE` of the peering; liqo-tenant-<cluster ID> by default")
	flags.StringVar(&p.ProxyURL, "proxy-url", "", "`URL` of a proxy to write into the kubeconfig")
	return func(ctx context.Context, kubeconfig string, _ []string) error {
		if err := required(map[string]string{"cluster-id": p.ClusterID, "node": p.Node}); err != nil {
			return err
		}
		content, err := readRemoteKubeconfig(file)
		if err != nil {
			return err
		}
		p.Kubeconfig, p.StorageClasses = content, classes
		return inLiqoHome(func(h liqo.Home, ctx context.Context) error { return h.Peer(ctx, p) })(ctx, kubeconfig, nil)
	}
}

func liqoMap(flags *flag.FlagSet) action {
	return forLiqoCluster(flags, func(h liqo.Home, ctx context.Context, clusterID string, arguments []string) error {
		mappings := make([]liqo.Mapping, 0, len(arguments))
		for _, argument := range arguments {
			mapping, err := liqo.ParseMapping(argument)
			if err != nil {
				return err
			}
			mappings = append(mappings, mapping)
		}
		return h.Map(ctx, clusterID, mappings...)
	})
}

func liqoUnmap(flags *flag.FlagSet) action {
	return forLiqoCluster(flags, func(h liqo.Home, ctx context.Context, clusterID string, arguments []string) error {
		return h.Unmap(ctx, clusterID, arguments...)
	})
}

func liqoRotate(flags *flag.FlagSet) action {
	var file string
	remoteKubeconfigFlag(flags, &file)
	return forLiqoCluster(flags, func(h liqo.Home, ctx context.Context, clusterID string, _ []string) error {
		content, err := readRemoteKubeconfig(file)
		if err != nil {
			return err
		}
		return h.Rotate(ctx, clusterID, content)
	})
}

func liqoUnpeer(flags *flag.FlagSet) action {
	return forLiqoCluster(flags, func(h liqo.Home, ctx context.Context, clusterID string, _ []string) error {
		return h.Unpeer(ctx, clusterID)
	})
}

func liqoRemoteRole(flags *flag.FlagSet) action {
	var namespaces list
	flags.Var(&namespaces, "namespace", "`NAMESPACE` of the remote cluster, may be repeated")
	return inLiqoRemote(flags, func(r liqo.Remote, ctx context.Context, homeID string) error {
		return r.Allow(ctx, homeID, namespaces...)
	})
}

func liqoRemoteRemove(flags *flag.FlagSet) action { return inLiqoRemote(flags, liqo.Remote.Forbid) }

func liqoIdentity(flags *flag.FlagSet) action {
	var slice, server, out string
	flags.StringVar(&slice, "slice", "slice", "`NAME` of the ResourceSlice, the prefix of the user name")
	flags.StringVar(&server, "server", "", "`URL` to write into the kubeconfig; the one of --kubeconfig by default")
	flags.StringVar(&out, "out", "", "`FILE` to write the kubeconfig to")
	return inLiqoRemote(flags, func(r liqo.Remote, ctx context.Context, homeID string) error {
		if err := required(map[string]string{"out": out}); err != nil {
			return err
		}
		content, err := r.Identity(ctx, homeID, slice, server)
		if err != nil {
			return err
		}
		if err := os.WriteFile(out, content, 0o600); err != nil {
			return fmt.Errorf("write the kubeconfig of home cluster %s: %w", homeID, err)
		}
		return nil
	})
}

func inLiqoHome(do func(liqo.Home, context.Context) error) action {
	return func(ctx context.Context, kubeconfig string, _ []string) error {
		home, err := liqo.OpenHome(kubeconfig)
		if err != nil {
			return err
		}
		return do(home, ctx)
	}
}

func forLiqoCluster(flags *flag.FlagSet, do func(h liqo.Home, ctx context.Context, clusterID string, arguments []string) error) action {
	var clusterID string
	clusterIDFlag(flags, &clusterID)
	return func(ctx context.Context, kubeconfig string, arguments []string) error {
		if err := required(map[string]string{"cluster-id": clusterID}); err != nil {
			return err
		}
		home, err := liqo.OpenHome(kubeconfig)
		if err != nil {
			return err
		}
		return do(home, ctx, clusterID, arguments)
	}
}

func inLiqoRemote(flags *flag.FlagSet, do func(r liqo.Remote, ctx context.Context, homeID string) error) action {
	var homeID string
	flags.StringVar(&homeID, "home-id", "", "cluster `ID` of the home cluster")
	return func(ctx context.Context, kubeconfig string, _ []string) error {
		if err := required(map[string]string{"home-id": homeID}); err != nil {
			return err
		}
		remote, err := liqo.OpenRemote(kubeconfig)
		if err != nil {
			return err
		}
		return do(remote, ctx, homeID)
	}
}

func clusterIDFlag(flags *flag.FlagSet, clusterID *string) {
	flags.StringVar(clusterID, "cluster-id", "", "cluster `ID` of the remote cluster")
}

func remoteKubeconfigFlag(flags *flag.FlagSet, file *string) {
	flags.StringVar(file, "remote-kubeconfig", "", "kubeconfig `FILE` of the remote cluster, used unchanged")
}

func readRemoteKubeconfig(file string) ([]byte, error) {
	if err := required(map[string]string{"remote-kubeconfig": file}); err != nil {
		return nil, err
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig of the remote cluster: %w", err)
	}
	return content, nil
}
