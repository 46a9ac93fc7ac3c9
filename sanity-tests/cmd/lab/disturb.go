package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/faults"
	"storage.liqo.io/sanity-tests/machine"
)

// find resolves "home/etcd", "kubelet@home-1" or "etcd", which is that of the
// first cluster.
func find(name string) (*clusters.Cluster, string, error) {
	lab, err := clusters.Load()
	if err != nil {
		return nil, "", err
	}
	if clusterName, component, qualified := strings.Cut(name, "/"); qualified {
		cluster, err := lab.Cluster(clusterName)
		return cluster, component, err
	}
	if _, nodeName, onNode := strings.Cut(name, "@"); onNode {
		for _, cluster := range lab.Clusters() {
			if _, err := cluster.Node(nodeName); err == nil {
				return cluster, name, nil
			}
		}
		return nil, "", fmt.Errorf("the lab has no node %q", nodeName)
	}
	return lab.Clusters()[0], name, nil
}

func withComponent(arguments []string, do func(*clusters.Cluster, string) error) error {
	if len(arguments) != 1 {
		return fmt.Errorf("name one component, such as home/etcd or kubelet@home-1 (all of them: lab status)")
	}
	cluster, component, err := find(arguments[0])
	if err != nil {
		return err
	}
	return do(cluster, component)
}

func kill(ctx context.Context, arguments []string) error {
	return withComponent(arguments, func(cluster *clusters.Cluster, component string) error {
		return cluster.Kill(ctx, component)
	})
}

func restart(ctx context.Context, arguments []string) error {
	return withComponent(arguments, func(cluster *clusters.Cluster, component string) error {
		return cluster.Restart(ctx, component)
	})
}

func logs(_ context.Context, arguments []string) error {
	if len(arguments) == 1 && strings.HasPrefix(arguments[0], "lab/") {
		return printFile(machine.LogFile(arguments[0]))
	}
	return withComponent(arguments, func(cluster *clusters.Cluster, component string) error {
		if _, err := cluster.Process(component); err != nil {
			return err
		}
		return printFile(cluster.Logs(component))
	})
}

func printFile(name string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(os.Stdout, file)
	return err
}

func kubectl(ctx context.Context, arguments []string) error {
	if len(arguments) == 0 {
		return fmt.Errorf("name the cluster first: lab kubectl home get pods")
	}
	lab, err := clusters.Load()
	if err != nil {
		return err
	}
	cluster, err := lab.Cluster(arguments[0])
	if err != nil {
		return err
	}
	return attached(exec.CommandContext(ctx, cluster.Kubectl(), arguments[1:]...))
}

func enter(ctx context.Context, arguments []string) error {
	if len(arguments) == 0 {
		return fmt.Errorf("name the node: lab enter home-1")
	}
	cluster, _, err := find("kubelet@" + arguments[0])
	if err != nil {
		return err
	}
	node, err := cluster.Node(arguments[0])
	if err != nil {
		return err
	}
	words := append(arguments[1:], "sh")
	if len(arguments) > 1 {
		words = arguments[1:]
	}
	return attached(node.Command(ctx, words[0], words[1:]...))
}

func attached(cmd *exec.Cmd) error {
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd.Run()
}

func partition(ctx context.Context, arguments []string) error {
	if len(arguments) != 1 || (arguments[0] != "on" && arguments[0] != "off") {
		return fmt.Errorf("say `lab partition on` or `lab partition off`")
	}
	lab, err := clusters.Load()
	if err != nil {
		return err
	}
	return lab.Partition(ctx, arguments[0] == "on")
}

func setFaults(ctx context.Context, arguments []string) error {
	lab, err := clusters.Load()
	if err != nil {
		return err
	}
	if len(arguments) > 0 {
		setting, err := parseFaults(arguments)
		if err != nil {
			return err
		}
		if err := lab.Proxy().Set(ctx, setting); err != nil {
			return err
		}
	}
	setting, err := lab.Proxy().Get(ctx)
	if err != nil {
		return err
	}
	fmt.Println(setting)
	return nil
}

func parseFaults(arguments []string) (faults.Setting, error) {
	setting := faults.Setting{Mode: faults.Mode(arguments[0])}
	flags := flag.NewFlagSet("lab faults", flag.ContinueOnError)
	flags.DurationVar(&setting.Up, "up", 0, "with delay: towards the remote cluster")
	flags.DurationVar(&setting.Down, "down", 0, "with delay: from the remote cluster")
	if err := flags.Parse(arguments[1:]); err != nil {
		return setting, err
	}
	if setting.Mode != faults.Delay && (setting.Up != 0 || setting.Down != 0) {
		return setting, fmt.Errorf("--up and --down belong to the mode delay, not to %s", setting.Mode)
	}
	return setting, nil
}
