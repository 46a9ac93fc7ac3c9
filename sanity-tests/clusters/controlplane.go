package clusters

import (
	"context"
	"fmt"
	"os"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/machine"
)

// Components of the control plane.
const (
	etcd              = "etcd"
	apiServer         = "kube-apiserver"
	controllerManager = "kube-controller-manager"
	scheduler         = "kube-scheduler"
	coreDNS           = "coredns"
)

// controlPlane lists them in the order of their start.
var controlPlane = []string{etcd, apiServer, controllerManager, scheduler, coreDNS}

func (c *Cluster) process(component string) string { return c.Name() + "/" + component }

func (c *Cluster) controlPlaneSpec(component string) machine.Spec {
	flags := map[string]func() []string{
		etcd:              c.etcdFlags,
		apiServer:         c.apiServerFlags,
		controllerManager: c.controllerManagerFlags,
		scheduler:         c.schedulerFlags,
		coreDNS:           c.dnsFlags,
	}[component]()
	return machine.Spec{
		Name:      c.process(component),
		Namespace: c.controlPlaneNet(),
		Command:   append([]string{c.lab.bin.Path(component)}, flags...),
	}
}

// etcdFlags: a lab need not survive a power failure, so etcd does not sync to disk.
func (c *Cluster) etcdFlags() []string {
	url := c.etcdURL()
	return []string{
		"--name=" + c.Name(),
		"--data-dir=" + c.dir("etcd"),
		"--unsafe-no-fsync",
		"--listen-client-urls=" + url,
		"--advertise-client-urls=" + url,
		"--listen-peer-urls=http://127.0.0.1:2380",
		"--listen-metrics-urls=http://127.0.0.1:2381",
		"--client-cert-auth",
		"--trusted-ca-file=" + c.pki().Cert(clusterCA),
		"--cert-file=" + c.pki().Cert("etcd"),
		"--key-file=" + c.pki().Key("etcd"),
	}
}

func (c *Cluster) etcdURL() string { return "https://" + c.controlPlaneIP() + ":2379" }

func (c *Cluster) apiServerFlags() []string {
	dir := c.pki()
	return []string{
		"--advertise-address=" + c.controlPlaneIP(),
		"--secure-port=443",
		"--allow-privileged",
		"--etcd-servers=" + c.etcdURL(),
		"--etcd-cafile=" + dir.Cert(clusterCA),
		"--etcd-certfile=" + dir.Cert("etcd-client"),
		"--etcd-keyfile=" + dir.Key("etcd-client"),
		"--service-cluster-ip-range=" + c.serviceCIDR(),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + dir.PublicKey(serviceAccount),
		"--service-account-signing-key-file=" + dir.Key(serviceAccount),
		"--client-ca-file=" + dir.Cert(clusterCA),
		"--tls-cert-file=" + dir.Cert(apiServer),
		"--tls-private-key-file=" + dir.Key(apiServer),
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--anonymous-auth=false",
		"--kubelet-certificate-authority=" + dir.Cert(clusterCA),
		"--kubelet-client-certificate=" + dir.Cert(kubeletClient),
		"--kubelet-client-key=" + dir.Key(kubeletClient),
		"--kubelet-preferred-address-types=InternalIP",
		"--requestheader-client-ca-file=" + dir.Cert(frontProxyCA),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + dir.Cert("front-proxy-client"),
		"--proxy-client-key-file=" + dir.Key("front-proxy-client"),
		"--audit-policy-file=" + c.auditPolicyFile(),
		"--audit-log-path=" + c.AuditLog(),
		"--audit-log-maxsize=2048", // one file for as long as a lab lives
	}
}

// controllerManagerFlags: with the default of 20 requests per second, benchmarks with more than
// about ten claims would measure the controller manager instead of the driver.
func (c *Cluster) controllerManagerFlags() []string {
	dir := c.pki()
	return append(c.clientFlags(controllerManager),
		"--kube-api-qps=1000",
		"--kube-api-burst=2000",
		"--use-service-account-credentials",
		"--service-account-private-key-file="+dir.Key(serviceAccount),
		"--root-ca-file="+dir.Cert(clusterCA),
		"--cluster-signing-cert-file="+dir.Cert(clusterCA),
		"--cluster-signing-key-file="+dir.Key(clusterCA),
		"--flex-volume-plugin-dir="+c.dir("volumeplugins"),
	)
}

func (c *Cluster) schedulerFlags() []string { return c.clientFlags(scheduler) }

// clientFlags are the common flags of the controller manager and the scheduler, which have one
// replica each.
func (c *Cluster) clientFlags(component string) []string {
	kubeconfig := c.dir(component + ".kubeconfig")
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=127.0.0.1",
		"--tls-cert-file=" + c.pki().Cert(component),
		"--tls-private-key-file=" + c.pki().Key(component),
		"--leader-elect=false",
	}
}

func (c *Cluster) auditPolicyFile() string { return c.dir("audit-policy.yaml") }

// auditPolicy records every request except health checks once, when it is completed.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: None
  nonResourceURLs: ["/healthz*", "/livez*", "/readyz*"]
- level: Metadata
`

// writeConfigs writes the configuration files of the control plane.
func (c *Cluster) writeConfigs() error {
	if err := os.MkdirAll(c.dir(), 0o755); err != nil {
		return fmt.Errorf("create the folder of cluster %s: %w", c.Name(), err)
	}
	if err := os.WriteFile(c.corefile(), []byte(c.dnsConfig()), 0o644); err != nil {
		return err
	}
	return os.WriteFile(c.auditPolicyFile(), []byte(auditPolicy), 0o644)
}

// allowKubeletAccess allows the API server to call kubelets for logs and exec. Kubelets authorize
// requests with SubjectAccessReviews.
func (c *Cluster) allowKubeletAccess(ctx context.Context) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: kubeletClient},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:kubelet-api-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: kubeletClient}},
	}
	_, err = client.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("allow the API server of %s to use its kubelets: %w", c.Name(), err)
	}
	return nil
}
