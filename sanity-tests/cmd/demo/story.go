package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"storage.liqo.io/sanity-tests/chart"
	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/machine"
)

const (
	namespace = "demo"
	diary     = "diary"
	pod       = diary + "-0"
	claim     = "pages-" + pod
	patience  = 4 * time.Minute
)

type story struct {
	lab    *clusters.Lab
	home   *clusters.Cluster
	client kubernetes.Interface
}

func newStory(lab *clusters.Lab, home *clusters.Cluster) (*story, error) {
	client, err := home.Client()
	return &story{lab: lab, home: home, client: client}, err
}

func (s *story) tell(ctx context.Context) error {
	if err := s.blankPage(ctx); err != nil {
		return err
	}

	chapter("A StatefulSet asks for a volume of class liqo")
	if err := s.startDiary(ctx); err != nil {
		return err
	}
	first, err := s.runningPod(ctx, "")
	if err != nil {
		return err
	}
	twin, err := s.showVolume(ctx, first)
	if err != nil {
		return err
	}
	if err := s.showDiary(ctx); err != nil {
		return err
	}

	chapter("Its pod is deleted, and the next one comes back to its data")
	if err := s.client.CoreV1().Pods(namespace).Delete(ctx, pod, metav1.DeleteOptions{}); err != nil {
		return err
	}
	second, err := s.runningPod(ctx, string(first.UID))
	if err != nil {
		return err
	}
	line("pod", "%s is another one (%s instead of %s), on node %s", pod, short(second.UID), short(first.UID), second.Spec.NodeName)
	if err := s.showDiary(ctx); err != nil {
		return err
	}

	chapter("The claim is deleted, and nothing stays behind")
	return s.removeDiary(ctx, twin)
}

// blankPage forgets an earlier run.
func (s *story) blankPage(ctx context.Context) error {
	namespaces := s.client.CoreV1().Namespaces()
	err := s.until(ctx, "the namespace of an earlier demo to go", func(ctx context.Context) error {
		err := namespaces.Delete(ctx, namespace, metav1.DeleteOptions{})
		return gone(err, "namespace "+namespace)
	})
	if err != nil {
		return err
	}
	_, err = namespaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	return err
}

func (s *story) startDiary(ctx context.Context) error {
	_, err := s.client.AppsV1().StatefulSets(namespace).Create(ctx, diarySet(), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	line("claim", "%s/%s wants 64Mi of class liqo; it waits for its pod to be scheduled", namespace, claim)
	return nil
}

// runningPod waits for the pod of the StatefulSet, if asked for another one than before.
func (s *story) runningPod(ctx context.Context, before string) (*corev1.Pod, error) {
	var found *corev1.Pod
	err := s.until(ctx, "pod "+pod+" to run", func(ctx context.Context) (err error) {
		found, err = s.client.CoreV1().Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
		switch {
		case err != nil:
			return err
		case string(found.UID) == before:
			return errors.New("the old one is still there")
		case found.Status.Phase != corev1.PodRunning:
			return fmt.Errorf("it is %s: %s", found.Status.Phase, s.lastEvents(ctx))
		}
		return nil
	})
	return found, err
}

// showVolume follows the volume from the claim to the bytes. It returns the twin.
func (s *story) showVolume(ctx context.Context, user *corev1.Pod) (twin *corev1.PersistentVolumeClaim, err error) {
	wanted, err := s.client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, claim, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	volume, err := s.client.CoreV1().PersistentVolumes().Get(ctx, wanted.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	twin, err = s.client.CoreV1().PersistentVolumeClaims(chart.StorageNamespace).Get(ctx, string(wanted.UID), metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	realVolume, err := s.client.CoreV1().PersistentVolumes().Get(ctx, twin.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	line("scheduler", "puts %s on node %s", pod, user.Spec.NodeName)
	line("twin", "%s/%s of class %s, made for that node: %s", twin.Namespace, twin.Name, *twin.Spec.StorageClassName, twin.Status.Phase)
	line("real volume", "%s, of %s", realVolume.Name, realSource(realVolume))
	line("claim", "%s is %s to %s after %s", claim, wanted.Status.Phase, volume.Name, volume.CreationTimestamp.Sub(wanted.CreationTimestamp.Time))
	line("gravity", "%s", gravity(volume))
	mount, err := s.inPod(ctx, "grep ' /pages ' /proc/mounts")
	if err != nil {
		return nil, err
	}
	line("mount", "%s", mount)
	return twin, nil
}

func (s *story) showDiary(ctx context.Context) error {
	pages, err := s.inPod(ctx, "cat /pages/diary")
	if err != nil {
		return err
	}
	for page := range strings.Lines(pages) {
		line("diary", "%s", strings.TrimSpace(page))
	}
	return nil
}

func (s *story) removeDiary(ctx context.Context, twin *corev1.PersistentVolumeClaim) error {
	if err := s.client.AppsV1().StatefulSets(namespace).Delete(ctx, diary, metav1.DeleteOptions{}); err != nil {
		return err
	}
	if err := s.client.CoreV1().PersistentVolumeClaims(namespace).Delete(ctx, claim, metav1.DeleteOptions{}); err != nil {
		return err
	}
	core := s.client.CoreV1()
	for _, left := range []struct {
		subject, name string
		get           func(context.Context) error
	}{
		{"claim", claim, func(ctx context.Context) error {
			_, err := core.PersistentVolumeClaims(namespace).Get(ctx, claim, metav1.GetOptions{})
			return err
		}},
		{"twin", twin.Name, func(ctx context.Context) error {
			_, err := core.PersistentVolumeClaims(twin.Namespace).Get(ctx, twin.Name, metav1.GetOptions{})
			return err
		}},
		{"real volume", twin.Spec.VolumeName, func(ctx context.Context) error {
			_, err := core.PersistentVolumes().Get(ctx, twin.Spec.VolumeName, metav1.GetOptions{})
			return err
		}},
	} {
		what := left.subject + " " + left.name
		err := s.until(ctx, what+" to go", func(ctx context.Context) error { return gone(left.get(ctx), what) })
		if err != nil {
			return err
		}
		line(left.subject, "%s is gone", left.name)
	}
	return s.client.CoreV1().Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{})
}

func (s *story) until(ctx context.Context, what string, condition func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return machine.Until(ctx, what, func() error { return condition(ctx) })
}

// gone is met when the API server does not know the object any more.
func gone(err error, what string) error {
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err == nil, apierrors.IsConflict(err):
		return fmt.Errorf("%s is still there", what)
	}
	return err
}
