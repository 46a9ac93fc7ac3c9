package machine

import (
	"context"
	"fmt"
	"os"
	"strings"
)

// network is the network namespace without the mount namespace, in which the files of other namespaces
// are hidden.
func (n Namespace) network() Namespace { return Namespace{Name: n.Name} }

// Links runs `ip` commands in one process, which takes milliseconds.
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

// Forwarding enables forwarding of packets, without redirects: nodes would learn routes around a link
// that a test cuts.
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
				return fmt.Errorf("enable forwarding in %s: %w", n.Name, err)
			}
		}
		return nil
	})
}
