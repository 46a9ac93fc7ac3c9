// Package cluster is a client of one cluster that applies and deletes objects and
// CustomResourceDefinitions, and waits until this is done. The packages liqo and kosmos have the
// objects.
package cluster

import (
	"context"
	"fmt"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// interval of polling; the context has the timeout.
const interval = 200 * time.Millisecond

// Cluster is a client of one cluster.
type Cluster struct {
	client.Client
	Config *rest.Config
}

// Open returns a client from a kubeconfig file, with the built-in kinds, CustomResourceDefinitions,
// and additional kinds.
func Open(kubeconfig string, kinds ...func(*runtime.Scheme) error) (Cluster, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return Cluster{}, fmt.Errorf("read kubeconfig %s: %w", kubeconfig, err)
	}
	config.QPS = -1 // the API server has priority and fairness
	config.WarningHandler = rest.NoWarnings{}

	scheme := runtime.NewScheme()
	for _, add := range append(kinds, clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme) {
		if err := add(scheme); err != nil {
			return Cluster{}, fmt.Errorf("register kinds: %w", err)
		}
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return Cluster{}, fmt.Errorf("create a client of %s: %w", config.Host, err)
	}
	return Cluster{Client: c, Config: config}, nil
}

// Enforce creates or updates the object with mutate.
func (c Cluster) Enforce(ctx context.Context, object client.Object, mutate func() error) error {
	err := retry.OnError(retry.DefaultBackoff, retriable, func() error {
		_, err := controllerutil.CreateOrUpdate(ctx, c, object, mutate)
		return err
	})
	return c.wrap("apply", object, err)
}

// EnforceStatus updates the status of an existing object with mutate.
func (c Cluster) EnforceStatus(ctx context.Context, object client.Object, mutate func()) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if err := c.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		mutate()
		return c.Status().Update(ctx, object)
	})
	return c.wrap("set the status of", object, err)
}

// DeleteAndWait deletes the object and waits until it is deleted. It ignores an absent object or kind.
func (c Cluster) DeleteAndWait(ctx context.Context, object client.Object) error {
	if err := c.Delete(ctx, object); err != nil {
		return c.wrap("delete", object, IgnoreAbsent(err))
	}
	uid := object.GetUID() // empty unless the object was read
	err := wait.PollUntilContextCancel(ctx, interval, true, func(ctx context.Context) (bool, error) {
		err := c.Get(ctx, client.ObjectKeyFromObject(object), object)
		if err != nil && IgnoreAbsent(err) == nil {
			return true, nil
		}
		return err == nil && uid != "" && object.GetUID() != uid, err
	})
	return c.wrap("wait for the deletion of", object, err)
}

func (c Cluster) wrap(action string, object client.Object, err error) error {
	if err == nil {
		return nil
	}
	kind := "object"
	if gvk, unknown := apiutil.GVKForObject(object, c.Scheme()); unknown == nil {
		kind = gvk.Kind
	}
	return fmt.Errorf("%s %s %s in %s: %w", action, kind, client.ObjectKeyFromObject(object), c.Config.Host, err)
}

func retriable(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }

// IgnoreAbsent returns nil for an error that says that an object, or its kind, does not exist.
func IgnoreAbsent(err error) error {
	if meta.IsNoMatchError(err) {
		return nil
	}
	return client.IgnoreNotFound(err)
}
