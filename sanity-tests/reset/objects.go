package reset

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/fabric"
)

// scaleUp gives each Deployment that a test has taken away one replica, and waits until it runs: the
// driver has to be there to release what tests leave. How many replicas there should be, the next
// installation says.
func (r *reset) scaleUp(ctx context.Context) error {
	for _, one := range r.targets {
		for _, namespace := range releases {
			deployments := one.client.AppsV1().Deployments(namespace)
			found, err := deployments.List(ctx, metav1.ListOptions{})
			if err != nil {
				return fmt.Errorf("list Deployments of %s in cluster %s: %w", namespace, one.Name(), err)
			}
			for _, deployment := range found.Items {
				if deployment.Spec.Replicas == nil || *deployment.Spec.Replicas > 0 {
					continue
				}
				scale, err := deployments.GetScale(ctx, deployment.Name, metav1.GetOptions{})
				if err != nil {
					return err
				}
				scale.Spec.Replicas = 1
				if _, err := deployments.UpdateScale(ctx, deployment.Name, scale, metav1.UpdateOptions{}); err != nil {
					return fmt.Errorf("scale Deployment %s/%s of cluster %s: %w", namespace, deployment.Name, one.Name(), err)
				}
				r.report("%s: Deployment %s/%s had no replicas: has one", one.Name(), namespace, deployment.Name)
				err = until(ctx, func(ctx context.Context) ([]string, error) {
					now, err := deployments.Get(ctx, deployment.Name, metav1.GetOptions{})
					if err == nil && now.Status.AvailableReplicas == 0 {
						return []string{fmt.Sprintf("Deployment %s/%s of cluster %s has no replica that is available", namespace, deployment.Name, one.Name())}, nil
					}
					return nil, err
				})
				if err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// removeFabrics removes nodes of the tests' fabric whose process was killed, with the pods on them,
// which no kubelet ends.
func (r *reset) removeFabrics(ctx context.Context) error {
	var errs []error
	for _, one := range r.targets {
		found, err := one.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list nodes of cluster %s: %w", one.Name(), err)
		}
		for _, node := range found.Items {
			behind, isFabrics := node.Annotations[fabric.RemoteAnnotation]
			if !isFabrics || !isTests(node.Name, fabricNodes) {
				continue
			}
			there, err := r.lab.Cluster(behind)
			if err == nil {
				r.report("%s: node %s of a test was left: removed with its pods", one.Name(), node.Name)
				err = fabric.Remove(ctx, fabric.Options{Home: one.Cluster, Remote: there, Node: node.Name})
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// endingPods is how long the pods of a namespace may take to end before the namespace is deleted all
// the same.
const endingPods = 20 * time.Second

// removeNamespaces deletes the namespaces of tests and waits until they are gone. Their pods are ended
// before: once a namespace is being deleted, Kubernetes looks at it again only after half of the
// longest grace period of its pods, and some tests have pods with one of minutes.
func (r *reset) removeNamespaces(ctx context.Context, targets []target) error {
	since := map[string]time.Time{}
	return until(ctx, func(ctx context.Context) (left []string, err error) {
		for _, one := range targets {
			found, err := one.client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, fmt.Errorf("list namespaces of cluster %s: %w", one.Name(), err)
			}
			for _, namespace := range found.Items {
				_, external := namespace.Labels["e2e-framework"] // of Kubernetes' own tests
				if !external && !isTests(namespace.Name, namespaces) {
					continue
				}
				key := one.Name() + "/" + namespace.Name
				if _, known := since[key]; !known {
					since[key] = time.Now()
					r.report("%s: namespace %s was left%s: removed", one.Name(), namespace.Name, of(namespace.Annotations["e2e/test"]))
				}
				pods, err := one.endPods(ctx, namespace.Name)
				if err != nil {
					return nil, err
				}
				if namespace.DeletionTimestamp == nil && (len(pods) == 0 || time.Since(since[key]) > endingPods) {
					err := one.client.CoreV1().Namespaces().Delete(ctx, namespace.Name, metav1.DeleteOptions{})
					if err != nil && !apierrors.IsNotFound(err) {
						return nil, fmt.Errorf("delete namespace %s of cluster %s: %w", namespace.Name, one.Name(), err)
					}
				}
				left = append(left, fmt.Sprintf("namespace %s of cluster %s with the pods %v%s", namespace.Name, one.Name(), pods, why(&namespace)))
			}
		}
		return left, nil
	})
}

// endPods ends the pods of a namespace soon, and what would make them again, and names those left.
func (t target) endPods(ctx context.Context, namespace string) (left []string, err error) {
	pods, err := t.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list pods of %s in cluster %s: %w", namespace, t.Name(), err)
	}
	if len(pods.Items) == 0 {
		return nil, nil
	}
	apps, all := t.client.AppsV1(), metav1.ListOptions{}
	background := metav1.DeletePropagationBackground
	owner := metav1.DeleteOptions{PropagationPolicy: &background}
	soon := metav1.DeleteOptions{GracePeriodSeconds: new(int64(1))} // 0 would be by force
	errs := []error{
		apps.Deployments(namespace).DeleteCollection(ctx, owner, all),
		apps.StatefulSets(namespace).DeleteCollection(ctx, owner, all),
		apps.DaemonSets(namespace).DeleteCollection(ctx, owner, all),
		apps.ReplicaSets(namespace).DeleteCollection(ctx, owner, all),
		t.client.BatchV1().Jobs(namespace).DeleteCollection(ctx, owner, all),
	}
	for _, pod := range pods.Items {
		left = append(left, pod.Name)
		if grace := pod.DeletionGracePeriodSeconds; grace != nil && *grace <= 1 {
			continue
		}
		err := t.client.CoreV1().Pods(namespace).Delete(ctx, pod.Name, soon)
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return left, fmt.Errorf("end the pods of %s in cluster %s: %w", namespace, t.Name(), err)
	}
	return left, nil
}

func of(test string) string {
	if test == "" {
		return ""
	}
	return " by " + test
}

// why is what a namespace that is being deleted says of what keeps it.
func why(namespace *corev1.Namespace) string {
	var said []string
	for _, condition := range namespace.Status.Conditions {
		if condition.Status == corev1.ConditionTrue {
			said = append(said, condition.Message)
		}
	}
	if len(said) == 0 {
		return ""
	}
	return ": " + strings.Join(said, ", ")
}

// removeVolumes lets volumes go that tests had the cluster keep, as the tests' own clean-up does,
// and waits until no volume is left of a claim whose namespace is gone.
func (r *reset) removeVolumes(ctx context.Context) error {
	policy := []byte(`{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`)
	return until(ctx, func(ctx context.Context) (left []string, err error) {
		for _, one := range r.targets {
			spaces, err := one.client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, fmt.Errorf("list namespaces of cluster %s: %w", one.Name(), err)
			}
			live := map[string]bool{}
			for _, namespace := range spaces.Items {
				live[namespace.Name] = true
			}
			volumes := one.client.CoreV1().PersistentVolumes()
			found, err := volumes.List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, fmt.Errorf("list volumes of cluster %s: %w", one.Name(), err)
			}
			for _, volume := range found.Items {
				claim := volume.Spec.ClaimRef
				// Others, such as the static ones, nobody provisions and nobody deletes.
				provisioned := volume.Annotations["pv.kubernetes.io/provisioned-by"] != ""
				if claim == nil || !provisioned || !isTests(claim.Namespace, namespaces) || live[claim.Namespace] {
					continue
				}
				if volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain {
					_, err := volumes.Patch(ctx, volume.Name, types.MergePatchType, policy, metav1.PatchOptions{})
					if err != nil && !apierrors.IsNotFound(err) {
						return nil, fmt.Errorf("let volume %s of cluster %s go: %w", volume.Name, one.Name(), err)
					}
					r.report("%s: volume %s of %s/%s was kept: removed", one.Name(), volume.Name, claim.Namespace, claim.Name)
				}
				left = append(left, fmt.Sprintf("volume %s of cluster %s is %s %s", volume.Name, one.Name(), volume.Status.Phase, volume.Status.Message))
			}
		}
		return left, nil
	})
}

// removeRemoteClusters tells the driver to let the remote clusters of tests go, and removes the
// Secrets with their kubeconfigs.
func (r *reset) removeRemoteClusters(ctx context.Context) error {
	secrets := map[string]string{} // by RemoteCluster
	home := r.targets[0]
	err := until(ctx, func(ctx context.Context) (left []string, err error) {
		objects := home.dynamic.Resource(driver.RemoteClusters)
		found, err := objects.List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			return nil, nil // the driver was never installed
		}
		if err != nil {
			return nil, fmt.Errorf("list RemoteClusters: %w", err)
		}
		for _, object := range found.Items {
			if !isTestsRemoteCluster(&object) {
				continue
			}
			name := object.GetName()
			if _, known := secrets[name]; !known {
				secrets[name], _, _ = unstructured.NestedString(object.Object, "spec", "kubeconfigSecretRef", "name")
				r.report("%s: RemoteCluster %s was left: removed", home.Name(), name)
			}
			if object.GetDeletionTimestamp() == nil {
				if err := objects.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
					return nil, fmt.Errorf("delete RemoteCluster %s: %w", name, err)
				}
			}
			left = append(left, fmt.Sprintf("RemoteCluster %s has the finalizers %v", name, object.GetFinalizers()))
		}
		return left, nil
	})
	if err != nil {
		return err
	}
	for _, secret := range secrets {
		if secret == "" {
			continue
		}
		err := home.client.CoreV1().Secrets(chart.Namespace).Delete(ctx, secret, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete the Secret of RemoteCluster %s: %w", secret, err)
		}
	}
	return nil
}

// clusterScoped are kinds of which tests make objects that are in no namespace.
var clusterScoped = []schema.GroupVersionResource{
	{Group: "storage.k8s.io", Version: "v1", Resource: "storageclasses"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicies"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicybindings"},
}

// removeClusterScoped removes classes and rights of tests. Nothing holds those.
func (r *reset) removeClusterScoped(ctx context.Context) error {
	for _, one := range r.targets {
		for _, kind := range clusterScoped {
			objects := one.dynamic.Resource(kind)
			found, err := objects.List(ctx, metav1.ListOptions{})
			if err != nil {
				return fmt.Errorf("list %s of cluster %s: %w", kind.Resource, one.Name(), err)
			}
			for _, object := range found.Items {
				name := object.GetName()
				external := strings.Contains(name, "-e2e-sc") // classes of Kubernetes' own tests
				if !external && !isTests(name, classes) {
					continue
				}
				if err := remove(ctx, objects, name); err != nil {
					return fmt.Errorf("delete %s %s of cluster %s: %w", kind.Resource, name, one.Name(), err)
				}
				r.report("%s: %s %s was left: removed", one.Name(), kind.Resource, name)
			}
		}
	}
	return nil
}

func remove(ctx context.Context, objects dynamic.ResourceInterface, name string) error {
	err := objects.Delete(ctx, name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (t target) hasNamespace(ctx context.Context, name string) (bool, error) {
	_, err := t.client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}
