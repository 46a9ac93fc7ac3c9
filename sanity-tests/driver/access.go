package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/machine"
)

// accessNamespace is the namespace in the remote cluster of the home cluster's identity.
const accessNamespace = "liqo-csi-access"

// Access is the chart's remoteAccess, at level fabric, installed in a remote cluster.
type Access struct {
	remote    *clusters.Cluster
	values    chart.Values
	manifests []byte
}

// GrantAccess installs it for a home cluster, with changes of the chart's values, and returns a kubeconfig of its
// identity.
func GrantAccess(ctx context.Context, home, remote *clusters.Cluster, changes chart.Values) (*Access, []byte, error) {
	a := &Access{remote: remote}
	helm, err := chart.New(ctx)
	if err != nil {
		return nil, nil, err
	}
	homeID, err := uid(ctx, home)
	if err != nil {
		return nil, nil, err
	}
	access := chart.Values{"only": true, "level": "fabric", "homeClusterID": homeID}
	maps.Copy(access, changes)
	a.values = chart.Values{"remoteAccess": access}
	if a.manifests, err = helm.Render(ctx, "home", accessNamespace, a.values); err != nil {
		return nil, nil, err
	}
	client, err := remote.Client()
	if err != nil {
		return nil, nil, err
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: accessNamespace}}
	_, err = client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, nil, err
	}
	if err := a.Apply(ctx); err != nil {
		return nil, nil, err
	}
	var token []byte
	err = machine.Until(ctx, "a token", func() error {
		secret, err := client.CoreV1().Secrets(accessNamespace).Get(ctx, "liqo-csi-remote-token", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if token = secret.Data[corev1.ServiceAccountTokenKey]; len(token) == 0 {
			return errors.New("it is empty")
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	text, err := os.ReadFile(remote.ProxyKubeconfig())
	if err != nil {
		return nil, nil, err
	}
	config, err := clientcmd.Load(text)
	if err != nil {
		return nil, nil, err
	}
	current := config.Contexts[config.CurrentContext]
	config.AuthInfos[current.AuthInfo] = &clientcmdapi.AuthInfo{Token: string(token)}
	kubeconfig, err := clientcmd.Write(*config)
	return a, kubeconfig, err
}

// uid identifies a cluster whose release has no clusterID.
func uid(ctx context.Context, cluster *clusters.Cluster) (string, error) {
	client, err := cluster.Client()
	if err != nil {
		return "", err
	}
	namespace, err := client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return string(namespace.UID), nil
}

// Apply creates its objects, or restores them.
func (a *Access) Apply(ctx context.Context) error { return a.kubectl(ctx, "apply", "-f", "-") }

// Upgrade applies the chart with changes of its values. Apply undoes them.
func (a *Access) Upgrade(ctx context.Context, changes chart.Values) error {
	helm, err := chart.New(ctx)
	if err != nil {
		return err
	}
	access := maps.Clone(a.values["remoteAccess"].(chart.Values))
	maps.Copy(access, changes)
	changed := *a
	if changed.manifests, err = helm.Render(ctx, "home", accessNamespace, chart.Values{"remoteAccess": access}); err != nil {
		return err
	}
	return changed.Apply(ctx)
}

// Notes is the output of Helm after its installation.
func (a *Access) Notes(ctx context.Context) (string, error) {
	helm, err := chart.New(ctx)
	if err != nil {
		return "", err
	}
	return helm.Notes(ctx, "home", accessNamespace, a.values)
}

// Policies is the prefix of the names of its policies and of their bindings.
const Policies = "liqo-csi-remote." + accessNamespace

// Revoke removes it, and returns when its namespace is gone: the next GrantAccess uses the same name.
func (a *Access) Revoke(ctx context.Context) error {
	deleted := a.kubectl(ctx, "delete", "--ignore-not-found", "-f", "-")
	client, err := a.remote.Client()
	if err != nil {
		return errors.Join(deleted, err)
	}
	gone := machine.Until(ctx, "namespace "+accessNamespace+" to be deleted", func() error {
		err := client.CoreV1().Namespaces().Delete(ctx, accessNamespace, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return cmp.Or(err, errors.New("it still exists"))
	})
	return errors.Join(deleted, gone)
}

func (a *Access) kubectl(ctx context.Context, args ...string) error {
	command := exec.CommandContext(ctx, a.remote.Kubectl(), args...)
	command.Stdin = strings.NewReader(string(a.manifests))
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
