package nodes

import (
	"fmt"

	"storage.liqo.io/sanity-tests/images"
)

// containerdToml differs from the defaults where the lab has to be gentle with
// the machine (no changes of OOM scores, no device injection) and where things
// are.
const containerdToml = `version = 3
disabled_plugins = ['io.containerd.nri.v1.nri']

[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = '` + images.PauseName + `'

[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  enable_cdi = false
  netns_mounts_under_state_dir = true

[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ['` + ProgramsDir + `']
  conf_dir = '` + cniConfigDir + `'

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
    SystemdCgroup = false
`

func cniConflist(podCIDR string) string {
	return fmt.Sprintf(`{
  "cniVersion": "1.0.0",
  "name": "lab",
  "plugins": [{
    "type": "bridge",
    "bridge": "cni0",
    "isGateway": true,
    "hairpinMode": true,
    "ipam": {
      "type": "host-local",
      "ranges": [[{"subnet": %q}]],
      "routes": [{"dst": "0.0.0.0/0"}]
    }
  }]
}
`, podCIDR)
}

// kubeletYaml is the kubelet's configuration. All nodes share the machine's
// disk and memory, so a node never evicts for want of them unless the machine
// itself is at its end; images are imported and could not be pulled again, so
// they are never collected. syncFrequency makes an online expansion visible
// after seconds instead of a minute; a container that died is back within a
// second however often it dies, because tests kill many.
func kubeletYaml(cgroup string) string {
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
syncFrequency: 10s
serializeImagePulls: false
crashLoopBackOff: {maxContainerRestartPeriod: 1s}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {memory.available: 50Mi, nodefs.available: 1%%, imagefs.available: 1%%}
volumePluginDir: %[4]s/volumeplugins
shutdownGracePeriod: 0s
`, CertificateDir, containerdSocket, cgroup, KubeletDir)
}
