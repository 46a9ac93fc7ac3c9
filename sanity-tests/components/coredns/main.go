// Command coredns is CoreDNS with only the plugins that a cluster of the lab needs: with all of
// them it is three times as large, and takes minutes to build.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
)

// The order of the plugins, as in the published CoreDNS.
func init() { dnsserver.Directives = []string{"ready", "errors", "kubernetes"} }

func main() { coremain.Run() }
