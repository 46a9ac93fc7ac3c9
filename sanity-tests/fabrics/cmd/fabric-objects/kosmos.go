package main

import (
	"context"
	"flag"

	"storage.liqo.io/fabrics/kosmos"
)

var kosmosVerbs = []verb{
	{"kosmos", "install", "", "install Kosmos' definition of Cluster in a home cluster, without any cluster", kosmosInstall},
	{"kosmos", "join", "", "join a remote cluster (creates no Node)", kosmosJoin},
	{"kosmos", "rotate", "", "change the kubeconfig of a cluster that has joined", kosmosRotate},
	{"kosmos", "leave", "", "delete a cluster that has joined", kosmosLeave},
	{"kosmos", "remove", "", "delete all clusters and the definition", kosmosRemove},
}

func kosmosInstall(*flag.FlagSet) action { return inKosmosHome(kosmos.Home.Install) }

func kosmosRemove(*flag.FlagSet) action { return inKosmosHome(kosmos.Home.Remove) }

func kosmosJoin(flags *flag.FlagSet) action { return withKosmosKubeconfig(flags, kosmos.Home.Join) }

func kosmosRotate(flags *flag.FlagSet) action { return withKosmosKubeconfig(flags, kosmos.Home.Rotate) }

func kosmosLeave(flags *flag.FlagSet) action { return forKosmosCluster(flags, kosmos.Home.Leave) }

func withKosmosKubeconfig(flags *flag.FlagSet, do func(h kosmos.Home, ctx context.Context, name string, kubeconfig []byte) error) action {
	var file string
	remoteKubeconfigFlag(flags, &file)
	return forKosmosCluster(flags, func(h kosmos.Home, ctx context.Context, name string) error {
		content, err := readRemoteKubeconfig(file)
		if err != nil {
			return err
		}
		return do(h, ctx, name, content)
	})
}

func forKosmosCluster(flags *flag.FlagSet, do func(h kosmos.Home, ctx context.Context, name string) error) action {
	var name string
	flags.StringVar(&name, "cluster", "", "`NAME` of the Cluster object")
	return func(ctx context.Context, kubeconfig string, _ []string) error {
		if err := required(map[string]string{"cluster": name}); err != nil {
			return err
		}
		return inKosmosHome(func(h kosmos.Home, ctx context.Context) error { return do(h, ctx, name) })(ctx, kubeconfig, nil)
	}
}

func inKosmosHome(do func(kosmos.Home, context.Context) error) action {
	return func(ctx context.Context, kubeconfig string, _ []string) error {
		home, err := kosmos.OpenHome(kubeconfig)
		if err != nil {
			return err
		}
		return do(home, ctx)
	}
}
