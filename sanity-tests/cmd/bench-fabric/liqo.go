package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"

	"storage.liqo.io/sanity-tests/bench"
	"storage.liqo.io/sanity-tests/liqo"
)

// virtualKubelet is how the command line of Liqo's virtual kubelet begins.
const virtualKubelet = "virtual-kubelet"

// virtualNodes are the objects by which Liqo configures its virtual kubelets.
var virtualNodes = schema.GroupVersionResource{Group: "offloading.liqo.io", Version: "v1beta1", Resource: "virtualnodes"}

// compareLiqo measures pods of Liqo's virtual kubelet and pods that are created directly, without the driver. CPU and
// memory are those of the virtual kubelet; the writes include those of Liqo's controller in the remote cluster, which
// creates the pods.
func compareLiqo(ctx context.Context, e *environment, counts []int) error {
	largest := slices.Max(counts)
	if err := e.simulateNodes(ctx, (largest+perNode-1)/perNode+1); err != nil {
		return err
	}
	peering, err := liqo.Start(ctx, e.home, e.remote, os.Stderr, "--cpu", "1000", "--memory", "1000Gi", "--pods", strconv.Itoa(2*largest))
	if peering != nil {
		e.addCleanup(peering.Stop)
	}
	if err != nil {
		return err
	}
	if err := e.createNamespaces(ctx); err != nil {
		return err
	}
	if err := e.placeLiqoPods(ctx); err != nil {
		return err
	}
	e.addCleanup(func(ctx context.Context) error {
		_, err := peering.Ctl(ctx, "unoffload", "namespace", e.namespace)
		return err
	})
	if _, err := peering.Ctl(ctx, "offload", "namespace", e.namespace, "--pod-offloading-strategy", "Remote"); err != nil {
		return err
	}
	installation, err := bench.FindIn(ctx, e.homeClient, liqo.TenantNamespace)
	if err != nil {
		return err
	}
	rows, err := e.batches(ctx, implementation{
		node:      liqo.RemoteID,
		agents:    []string{virtualKubelet, "liqo-controller-manager"},
		processes: func() (bench.Process, error) { return processesOf(installation, virtualKubelet) },
	}, counts)
	if err != nil {
		return err
	}
	fmt.Printf("\nLiqo %s\n", peering.Version)
	return bench.PrintPods(os.Stdout, "Liqo", rows)
}

// placeLiqoPods makes Liqo run its pods on the simulated nodes, and waits until its virtual kubelet was restarted for that.
func (e *environment) placeLiqoPods(ctx context.Context) error {
	config, err := e.home.Config()
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	before, err := e.virtualKubelet(ctx)
	if err != nil {
		return err
	}
	patch := fmt.Sprintf(`{"spec": {"offloadingPatch": {"nodeSelector": {%q: "true"}, "tolerations": [{"key": %q, "operator": "Exists"}]}}}`, simulated, simulated)
	if _, err := client.Resource(virtualNodes).Namespace(liqo.TenantNamespace).
		Patch(ctx, liqo.RemoteID, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("place the pods of Liqo: %w", err)
	}
	return wait.PollUntilContextTimeout(ctx, time.Second, 5*time.Minute, true, func(ctx context.Context) (bool, error) {
		now, err := e.virtualKubelet(ctx)
		if err != nil {
			return false, err
		}
		status := now.Status
		return now.Generation > before.Generation && status.ObservedGeneration == now.Generation &&
			status.Replicas == 1 && status.UpdatedReplicas == 1 && status.AvailableReplicas == 1, nil
	})
}

// virtualKubelet returns the Deployment of Liqo's virtual kubelet.
func (e *environment) virtualKubelet(ctx context.Context) (*appsv1.Deployment, error) {
	all, err := e.homeClient.AppsV1().Deployments(liqo.TenantNamespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	if len(all.Items) != 1 {
		return nil, fmt.Errorf("%d Deployments in %s, not that of one virtual kubelet", len(all.Items), liqo.TenantNamespace)
	}
	return &all.Items[0], nil
}
