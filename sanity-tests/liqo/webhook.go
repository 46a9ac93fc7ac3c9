package liqo

import (
	"context"
	"errors"
	"time"

	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/faults"
	"storage.liqo.io/sanity-tests/machine"
)

// webhookService is the Service of Liqo's webhooks.
const webhookService = "liqo-webhook"

// webhook connects the API server to Liqo's webhooks while this process runs: the control planes of
// the lab have no kube-proxy.
type webhook struct {
	cancel  context.CancelFunc
	ended   chan error
	address func(context.Context) error
}

func serveWebhook(ctx context.Context, cluster *clusters.Cluster) (*webhook, error) {
	w := &webhook{ended: make(chan error, 1)}
	var relay faults.Relay
	ready, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err := machine.Until(ready, "a ready pod of "+webhookService, func() (err error) {
		relay, w.address, err = cluster.ServiceRelay(ready, namespace, webhookService)
		return err
	})
	if err != nil {
		return nil, err
	}
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	w.cancel = cancel
	go func() { w.ended <- faults.Relays{Relays: []faults.Relay{relay}}.Serve(serving) }()
	return w, nil
}

func (w *webhook) stop(ctx context.Context) error {
	w.cancel()
	return errors.Join(<-w.ended, w.address(ctx))
}
