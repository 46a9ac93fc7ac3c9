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

// scaleUp scales Deployments without replicas to one, and waits until it is available: the driver must
// run to delete objects of tests. The next installation sets the number of replicas.
func (r *reset) scaleUp(ctx context.Context) error {
	for _, t := range r.targets {
		for _, namespace := range releases {
			deployments := t.client.AppsV1().Deployments(namespace)
			found, err := deployments.List(ctx, metav1.ListOptions{})
			if err != nil {
				return fmt.Errorf("list Deployments of %s in cluster %s: %w", namespace, t.Name(), err)
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
					return fmt.Errorf("scale Deployment %s/%s of cluster %s: %w", namespace, deployment.Name, t.Name(), err)
				}
				r.report("%s: Deployment %s/%s had no replicas: scaled to one", t.Name(), namespace, deployment.Name)
				err = until(ctx, func(ctx context.Context) ([]string, error) {
					now, err := deployments.Get(ctx, deployment.Name, metav1.GetOptions{})
					if err == nil && now.Status.AvailableReplicas == 0 {
						return []string{fmt.Sprintf("Deployment %s/%s of cluster %s has no available replica", namespace, deployment.Name, t.Name())}, nil
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

// removeFabrics deletes nodes of the tests' fabric whose process was killed, with their pods, which
// have no kubelet.
func (r *reset) removeFabrics(ctx context.Context) error {
	var errs []error
	for _, t := range r.targets {
		found, err := t.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list nodes of cluster %s: %w", t.Name(), err)
		}
		for _, node := range found.Items {
			remoteName, isFabrics := node.Annotations[fabric.RemoteAnnotation]
			if !isFabrics || !isTests(node.Name, fabricNodes) {
				continue
			}
			remote, err := r.lab.Cluster(remoteName)
			if err == nil {
				r.report("%s: deleted node %s of a test with its pods", t.Name(), node.Name)
				err = fabric.Remove(ctx, fabric.Options{Home: t.Cluster, Remote: remote, Node: node.Name})
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// podTimeout is how long the pods of a namespace may take to end before the namespace is deleted.
const podTimeout = 20 * time.Second

// removeNamespaces deletes the namespaces of tests and waits until they are deleted. It deletes their
// pods first: Kubernetes checks a terminating namespace only after half of the longest grace period of
// its pods, which is minutes in some tests.
func (r *reset) removeNamespaces(ctx context.Context, targets []target) error {
	since := map[string]time.Time{}
	return until(ctx, func(ctx context.Context) (left []string, err error) {
		for _, t := range targets {
			found, err := t.client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, fmt.Errorf("list namespaces of cluster %s: %w", t.Name(), err)
			}
			for _, namespace := range found.Items {
				_, external := namespace.Labels["e2e-framework"] // of Kubernetes' own tests
				if !external && !isTests(namespace.Name, namespaces) {
					continue
				}
				key := t.Name() + "/" + namespace.Name
				if _, known := since[key]; !known {
					since[key] = time.Now()
					r.report("%s: deleted namespace %s of test %q", t.Name(), namespace.Name, namespace.Annotations["e2e/test"])
				}
				pods, err := t.deletePods(ctx, namespace.Name)
				if err != nil {
					return nil, err
				}
				if namespace.DeletionTimestamp == nil && (len(pods) == 0 || time.Since(since[key]) > podTimeout) {
					err := t.client.CoreV1().Namespaces().Delete(ctx, namespace.Name, metav1.DeleteOptions{})
					if err != nil && !apierrors.IsNotFound(err) {
						return nil, fmt.Errorf("delete namespace %s of cluster %s: %w", namespace.Name, t.Name(), err)
					}
				}
				left = append(left, fmt.Sprintf("namespace %s of cluster %s with the pods %v%s", namespace.Name, t.Name(), pods, conditions(&namespace)))
			}
		}
		return left, nil
	})
}

// deletePods deletes the pods of a namespace and their controllers, and returns the names of those
// that are left.
func (t target) deletePods(ctx context.Context, namespace string) (left []string, err error) {
	pods, err := t.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list pods of %s in cluster %s: %w", namespace, t.Name(), err)
	}
	if len(pods.Items) == 0 {
		return nil, nil
	}
	apps, all := t.client.AppsV1(), metav1.ListOptions{}
	owner := metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}
	soon := metav1.DeleteOptions{GracePeriodSeconds: new(int64(1))} // 0 would force the deletion
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
		return left, fmt.Errorf("delete the pods of %s in cluster %s: %w", namespace, t.Name(), err)
	}
	return left, nil
}

// conditions returns the messages of a terminating namespace.
func conditions(namespace *corev1.Namespace) string {
	var messages []string
	for _, condition := range namespace.Status.Conditions {
		if condition.Status == corev1.ConditionTrue {
			messages = append(messages, condition.Message)
		}
	}
	if len(messages) == 0 {
		return ""
	}
	return ": " + strings.Join(messages, ", ")
}

// removeVolumes sets the reclaim policy of volumes that tests retained to Delete, as the tests'
// clean-up does, and waits until all volumes of claims in deleted namespaces are deleted.
func (r *reset) removeVolumes(ctx context.Context) error {
	policy := []byte(`{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`)
	return until(ctx, func(ctx context.Context) (left []string, err error) {
		for _, t := range r.targets {
			spaces, err := t.client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, fmt.Errorf("list namespaces of cluster %s: %w", t.Name(), err)
			}
			live := map[string]bool{}
			for _, namespace := range spaces.Items {
				live[namespace.Name] = true
			}
			volumes := t.client.CoreV1().PersistentVolumes()
			found, err := volumes.List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, fmt.Errorf("list volumes of cluster %s: %w", t.Name(), err)
			}
			for _, volume := range found.Items {
				claim := volume.Spec.ClaimRef
				// Static volumes are not deleted.
				provisioned := volume.Annotations["pv.kubernetes.io/provisioned-by"] != ""
				if claim == nil || !provisioned || !isTests(claim.Namespace, namespaces) || live[claim.Namespace] {
					continue
				}
				if volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain {
					_, err := volumes.Patch(ctx, volume.Name, types.MergePatchType, policy, metav1.PatchOptions{})
					if err != nil && !apierrors.IsNotFound(err) {
						return nil, fmt.Errorf("set the reclaim policy of volume %s of cluster %s: %w", volume.Name, t.Name(), err)
					}
					r.report("%s: deleted the retained volume %s of %s/%s", t.Name(), volume.Name, claim.Namespace, claim.Name)
				}
				left = append(left, fmt.Sprintf("volume %s of cluster %s is %s %s", volume.Name, t.Name(), volume.Status.Phase, volume.Status.Message))
			}
		}
		return left, nil
	})
}

// removeRemoteClusters deletes the RemoteClusters of tests, waits until the driver has removed its
// finalizers, and deletes the Secrets with their kubeconfigs.
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
				r.report("%s: deleted RemoteCluster %s of a test", home.Name(), name)
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

// clusterScoped are cluster-scoped resources that tests create.
var clusterScoped = []schema.GroupVersionResource{
	{Group: "storage.k8s.io", Version: "v1", Resource: "storageclasses"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicies"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicybindings"},
}

// removeClusterScoped deletes classes, RBAC and policies of tests, which have no finalizers.
func (r *reset) removeClusterScoped(ctx context.Context) error {
	for _, t := range r.targets {
		for _, kind := range clusterScoped {
			objects := t.dynamic.Resource(kind)
			found, err := objects.List(ctx, metav1.ListOptions{})
			if err != nil {
				return fmt.Errorf("list %s of cluster %s: %w", kind.Resource, t.Name(), err)
			}
			for _, object := range found.Items {
				name := object.GetName()
				external := strings.Contains(name, "-e2e-sc") // classes of Kubernetes' own tests
				if !external && !isTests(name, classes) {
					continue
				}
				if err := remove(ctx, objects, name); err != nil {
					return fmt.Errorf("delete %s %s of cluster %s: %w", kind.Resource, name, t.Name(), err)
				}
				r.report("%s: deleted %s %s of a test", t.Name(), kind.Resource, name)
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
