package machine

import (
	"context"
	"fmt"
	"os"
	"strings"
)

// network is the network namespace alone: from there, the files that hold the
// other namespaces are in sight.
func (n Namespace) network() Namespace { return Namespace{Name: n.Name} }

// Links runs `ip` commands, one per line, inside a namespace: in one process,
// so a network is up in milliseconds.
func (n Namespace) Links(ctx context.Context, lines ...string) error {
	cmd := n.network().Command(ctx, "ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if err := runQuietly(cmd); err != nil {
		return fmt.Errorf("set up the network of %s: %w", n.Name, err)
	}
	return nil
}

// HasLink reports whether an interface exists in the namespace.
func (n Namespace) HasLink(ctx context.Context, name string) bool {
	return n.network().Run(ctx, "ip", "link", "show", "dev", name) == nil
}

// Forwarding makes the namespace route packets that are not its own, silently:
// redirects would teach the nodes short cuts around a link that is to be cut.
func (n Namespace) Forwarding() error {
	return n.InNetwork(func() error {
		for _, setting := range []struct{ file, value string }{
			{"ip_forward", "1"},
			{"conf/all/send_redirects", "0"},
			{"conf/default/send_redirects", "0"},
			{"conf/all/rp_filter", "0"},
			{"conf/default/rp_filter", "0"},
		} {
			if err := os.WriteFile("/proc/sys/net/ipv4/"+setting.file, []byte(setting.value), 0o644); err != nil {
				return fmt.Errorf("let %s forward packets: %w", n.Name, err)
			}
		}
		return nil
	})
}
