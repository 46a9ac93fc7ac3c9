package clusters

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"k8s.io/client-go/rest"

	"storage.liqo.io/sanity-tests/machine"
)

// StartAPIServer starts one more API server for the same etcd, as a control plane with several replicas has, on another
// port. It returns the administrator's configuration for it, and a function that stops it.
func (c *Cluster) StartAPIServer(ctx context.Context, port int) (config *rest.Config, stop func() error, err error) {
	if config, err = c.Config(); err != nil {
		return nil, nil, err
	}
	inside := c.controlPlaneNet()
	config.Host = "https://" + net.JoinHostPort(c.controlPlaneIP(), strconv.Itoa(port))
	config.Dial = dialIn(inside)

	spec := c.controlPlaneSpec(apiServer)
	spec.Name = c.process(fmt.Sprintf("%s-%d", apiServer, port))
	spec.Command = append(spec.Command,
		fmt.Sprintf("--secure-port=%d", port),
		// It has the address of the first one, which keeps the endpoint of the Service kubernetes.
		"--endpoint-reconciler-type=none",
		"--audit-log-path=",
	)
	another := component{spec: spec, healthy: func(ctx context.Context) error { return c.get(ctx, inside, config.Host+"/readyz") }}
	stop = func() error {
		process, err := machine.Find(spec.Name)
		if err != nil {
			return err
		}
		return process.Kill()
	}
	if err := another.ensure(ctx); err != nil {
		_ = stop()
		return nil, nil, err
	}
	return config, stop, nil
}
