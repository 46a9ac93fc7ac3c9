package nodes

import (
	"fmt"

	"storage.liqo.io/sanity-tests/images"
)

// containerdToml differs from the defaults where containerd must not change the machine (OOM
// scores, device injection), and in paths. It asks the shim of each container for its CPU usage every ten
// seconds, not each second: with all pods of the lab idle, that took most of the CPU.
const containerdToml = `version = 3
disabled_plugins = ['io.containerd.nri.v1.nri']

[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = '` + images.PauseName + `'

[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  enable_cdi = false
  netns_mounts_under_state_dir = true
  stats_collect_period = '10s'

[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ['` + ProgramsDir + `']
  conf_dir = '` + cniConfigDir + `'

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
    SystemdCgroup = false
`

// podBridge is the bridge of a node's pods.
const podBridge = "cni0"

func cniConflist(podCIDR string) string {
	return fmt.Sprintf(`{
  "cniVersion": "1.0.0",
  "name": "lab",
  "plugins": [{
    "type": "bridge",
    "bridge": %q,
    "isGateway": true,
    "hairpinMode": true,
    "ipam": {
      "type": "host-local",
      "ranges": [[{"subnet": %q}]],
      "routes": [{"dst": "0.0.0.0/0"}]
    }
  }]
}
`, podBridge, podCIDR)
}

// kubeletYaml returns kubelet's configuration. All nodes share the machine's disk and memory, so a
// node evicts pods only if the machine itself is almost out of them. Images are imported and could
// not be pulled again, so they are never garbage-collected. With syncFrequency an online expansion
// is visible after seconds instead of a minute. A terminated container is restarted within a
// second, however often it terminates, because tests kill many.
func (n *Node) kubeletYaml(cgroup string) string {
	return fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: %[1]s/ca.crt}
authorization: {mode: Webhook}
tlsCertFile: %[1]s/serving.crt
tlsPrivateKeyFile: %[1]s/serving.key
containerRuntimeEndpoint: unix://%[2]s
cgroupDriver: cgroupfs
cgroupRoot: %[3]s
enforceNodeAllocatable: ["none"]
failCgroupV1: false
failSwapOn: false
resolvConf: ""
clusterDNS: [%[5]s]
clusterDomain: cluster.local
syncFrequency: 10s
%[6]sserializeImagePulls: false
crashLoopBackOff: {maxContainerRestartPeriod: 1s}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {memory.available: 50Mi, nodefs.available: 1%%, imagefs.available: 1%%}
volumePluginDir: %[4]s/volumeplugins
shutdownGracePeriod: 0s
`, CertificateDir, containerdSocket, cgroup, KubeletDir, n.DNS, n.quickStatus())
}

// quickStatus keeps the default of nodeStatusReportFrequency, which would change with the other.
func (n *Node) quickStatus() string {
	if !n.QuickStatus {
		return ""
	}
	return "nodeStatusUpdateFrequency: 1s\nnodeStatusReportFrequency: 5m\n"
}

// proxyYaml returns kube-proxy's configuration. Packets that are not from this node's pods, such as
// those of the node itself, get the node's address as source, so that responses come back to it.
// Settings for connection tracking are the whole machine's, so they are not changed.
func (n *Node) proxyYaml() string {
	return fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
hostnameOverride: %s
clientConnection: {kubeconfig: %s}
detectLocalMode: BridgeInterface
detectLocal: {bridgeInterface: %s}
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`, n.Name, ProxyKubeconfig, podBridge)
}
