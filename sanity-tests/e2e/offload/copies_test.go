package offload

import (
	"context"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"storage.liqo.io/sanity-tests/e2e/user"
)

const copied = `apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {color: blue}
---
apiVersion: v1
kind: Secret
metadata: {name: password}
stringData: {password: secret}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: private, annotations: {liqo.io/skip-reflection: "true"}}
data: {color: red}
---
apiVersion: v1
kind: Secret
metadata: {name: sh.helm.release.v1.web.v1}
type: helm.sh/release.v1
stringData: {release: H4sIAAAA}
`

// "The pod offloading strategy applies to pods only, while the other objects [...] are always
// replicated to the remote clusters".
func TestObjectsAreCopiedWithEveryStrategy(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{"Local", "Remote", "LocalAndRemote"} {
		t.Run(strategy, func(t *testing.T) {
			n := newTenant(t)
			n.offload("--namespace-mapping-strategy", "EnforceSameName", "--pod-offloading-strategy", strategy)
			n.Apply(copied)
			remote := user.ExistingNamespace(t, user.Cluster(t, "remote"), n.Name)
			core := remote.Client.CoreV1()
			remote.Eventually("the objects to be copied", func(ctx context.Context) (string, error) {
				configs, err := core.ConfigMaps(n.Name).List(ctx, metav1.ListOptions{})
				if err != nil {
					return "", err
				}
				secrets, err := core.Secrets(n.Name).List(ctx, metav1.ListOptions{})
				if err != nil {
					return "", err
				}
				got := map[string]string{}
				for _, one := range configs.Items {
					got[one.Name] = one.Data["color"]
				}
				for _, one := range secrets.Items {
					got[one.Name] = string(one.Data["password"])
				}
				if got["settings"] != "blue" || got["password"] != "secret" {
					return fmt.Sprint("there are ", got), nil
				}
				for _, name := range []string{"private", "sh.helm.release.v1.web.v1"} {
					if _, exists := got[name]; exists {
						t.Errorf("%s was copied", name)
					}
				}
				return "", nil
			})
			n.unoffload()
			if n.remote(n.Name) != nil {
				t.Error("the remote namespace still exists, with the copies")
			}
		})
	}
}

// Both clusters of the lab have one IP family: they accept PreferDualStack, and API servers set two families on
// headless Services without a selector in any cluster.
func TestServicesKeepTheirIPFamilies(t *testing.T) {
	n, remote := offloadedTenant(t)
	n.Apply(`apiVersion: v1
kind: Service
metadata: {name: preferred}
spec: {ipFamilyPolicy: PreferDualStack, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: without-pods}
spec: {clusterIP: None, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: single}
spec: {ports: [{port: 80}]}
`)
	services := func(of *user.Namespace) func(string) (string, error) {
		return func(name string) (string, error) {
			found, err := of.Client.CoreV1().Services(of.Name).Get(t.Context(), name, metav1.GetOptions{})
			if err != nil || found.Spec.IPFamilyPolicy == nil {
				return "", err
			}
			return fmt.Sprint(*found.Spec.IPFamilyPolicy, found.Spec.IPFamilies), nil
		}
	}
	for name, policy := range map[string]string{"preferred": "PreferDualStack", "without-pods": "RequireDualStack", "single": "SingleStack"} {
		here, err := services(n.Namespace)(name)
		if err != nil || !strings.HasPrefix(here, policy) {
			t.Fatal(name, here, err)
		}
		remote.Eventually("the copy of "+name, func(context.Context) (string, error) {
			there, err := services(remote)(name)
			if apierrors.IsNotFound(err) || err == nil && there != here {
				return fmt.Sprintf("it is %s at home, %s in the remote cluster (%v)", here, there, err), nil
			}
			return "", err
		})
	}
	patch := `{"spec": {"ipFamilyPolicy": "SingleStack"}}`
	if out, err := n.Kubectl("patch", "service", "preferred", "--type=merge", "-p", patch); err != nil {
		t.Fatal(err, out)
	}
	remote.Eventually("the copy to be updated", func(context.Context) (string, error) {
		there, err := services(remote)("preferred")
		if err == nil && !strings.HasPrefix(there, "SingleStack") {
			return "it is " + there, nil
		}
		return "", err
	})
}
