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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"storage.liqo.io/sanity-tests/clusters"
	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/machine"
)

const (
	home, remote    = "home", "remote" // the clusters
	homeNamespace   = "demo"
	remoteNamespace = "demo-from-home"
	class           = "liqo"
	diary           = "diary"
	replicas        = 2
	stepTimeout     = 4 * time.Minute
)

type story struct {
	lab          *clusters.Lab
	home, remote side
	// dynamic is for the driver's own kinds in the home cluster.
	dynamic dynamic.Interface
	// access is the identity of the home cluster in the remote cluster.
	access *driver.Access
}

func newStory(lab *clusters.Lab) (s *story, err error) {
	s = &story{lab: lab}
	if s.home, err = newSide(lab, home, homeNamespace); err != nil {
		return nil, err
	}
	if s.remote, err = newSide(lab, remote, remoteNamespace); err != nil {
		return nil, err
	}
	config, err := s.home.cluster.Config()
	if err != nil {
		return nil, err
	}
	s.dynamic, err = dynamic.NewForConfig(config)
	return s, err
}

func (s *story) runSteps(ctx context.Context) error {
	chapter(fmt.Sprintf("A StatefulSet of %d pods asks for volumes of class %s", replicas, class))
	here, there, err := s.startDiary(ctx)
	if err != nil {
		return err
	}

	for _, page := range []*page{here, there} {
		chapter(fmt.Sprintf("The volume of %s is where its pod is: in cluster %s", page.pod, page.at.cluster.Name()))
		if err := s.showVolume(ctx, page); err != nil {
			return err
		}
		if err := s.showContainer(ctx, page); err != nil {
			return err
		}
		if err := s.showMount(ctx, page); err != nil {
			return err
		}
		if err := s.showDiary(ctx, page, 1); err != nil {
			return err
		}
	}

	for _, page := range []*page{here, there} {
		chapter(fmt.Sprintf("%s is deleted, and the next one comes back to its data in cluster %s", page.pod, page.at.cluster.Name()))
		if err := s.deletePod(ctx, page); err != nil {
			return err
		}
		if err := s.showReturn(ctx, page, 2); err != nil {
			return err
		}
	}

	chapter(fmt.Sprintf("Node %s is cordoned and %s deleted: the next one waits for its data", virtualNode, there.pod))
	if err := s.cordon(ctx, true); err != nil {
		return err
	}
	if err := s.deletePod(ctx, there); err != nil {
		return err
	}
	if err := s.showPending(ctx, there); err != nil {
		return err
	}

	chapter(fmt.Sprintf("Node %s is uncordoned", virtualNode))
	if err := s.cordon(ctx, false); err != nil {
		return err
	}
	if err := s.showReturn(ctx, there, 3); err != nil {
		return err
	}

	chapter(fmt.Sprintf("The volume of %s moves home, while the pod uses it", there.pod))
	if err := s.showMove(ctx, there, 4); err != nil {
		return err
	}

	chapter("StatefulSet and claims are deleted, and nothing stays behind in either cluster")
	return s.removeDiary(ctx, here, there)
}

// startDiary returns the pages in the home cluster and in the remote one.
func (s *story) startDiary(ctx context.Context) (here, there *page, err error) {
	_, err = s.home.client.AppsV1().StatefulSets(homeNamespace).Create(ctx, diarySet(), metav1.CreateOptions{})
	if err != nil {
		return nil, nil, err
	}
	for ordinal := range replicas {
		p := newPage(ordinal)
		if err := s.awaitPod(ctx, p); err != nil {
			return nil, nil, err
		}
		line("scheduler", "puts %s (%s) on node %s", p.pod, short(p.user.UID), p.user.Spec.NodeName)
		if p.user.Spec.NodeName == virtualNode {
			p.at, there = s.remote, p
		} else {
			p.at, here = s.home, p
		}
	}
	if here == nil || there == nil {
		return nil, nil, errors.New("the scheduler put both pods into one cluster, and this story is about two; run it again")
	}
	return here, there, nil
}

// awaitPod waits until the page has a running pod other than the previous one.
func (s *story) awaitPod(ctx context.Context, p *page) error {
	return s.until(ctx, "pod "+p.pod+" to run", func(ctx context.Context) error {
		found, err := s.home.client.CoreV1().Pods(homeNamespace).Get(ctx, p.pod, metav1.GetOptions{})
		switch {
		case err != nil:
			return err
		case p.user != nil && found.UID == p.user.UID:
			return errors.New("the old pod still exists")
		case found.Status.Phase != corev1.PodRunning:
			return fmt.Errorf("it is %s: %s", found.Status.Phase, s.lastEvents(ctx))
		}
		p.user = found
		return nil
	})
}

func (s *story) deletePod(ctx context.Context, p *page) error {
	return s.home.client.CoreV1().Pods(homeNamespace).Delete(ctx, p.pod, metav1.DeleteOptions{})
}

// showReturn waits for another pod, which must find what the previous ones wrote.
func (s *story) showReturn(ctx context.Context, p *page, lines int) error {
	before := p.user
	if err := s.awaitPod(ctx, p); err != nil {
		return err
	}
	line("pod", "%s is another one (%s instead of %s), on node %s", p.pod, short(p.user.UID), short(before.UID), p.user.Spec.NodeName)
	if err := s.showContainer(ctx, p); err != nil {
		return err
	}
	return s.showDiary(ctx, p, lines)
}

// cordon cordons the virtual node, or uncordons it.
func (s *story) cordon(ctx context.Context, on bool) error {
	patch := fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, on)
	_, err := s.home.client.CoreV1().Nodes().Patch(ctx, virtualNode, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// showPending shows that the pod is not scheduled, and why.
func (s *story) showPending(ctx context.Context, p *page) error {
	var reason string
	err := s.until(ctx, "the scheduler to refuse pod "+p.pod, func(ctx context.Context) (err error) {
		found, err := s.home.client.CoreV1().Pods(homeNamespace).Get(ctx, p.pod, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if found.UID == p.user.UID {
			return errors.New("the old pod still exists")
		}
		for _, condition := range found.Status.Conditions {
			if condition.Type == corev1.PodScheduled && condition.Reason == corev1.PodReasonUnschedulable {
				reason = condition.Message
				line("pod", "%s (%s) is %s", p.pod, short(found.UID), found.Status.Phase)
				return nil
			}
		}
		return fmt.Errorf("it is %s on node %q", found.Status.Phase, found.Spec.NodeName)
	})
	if err != nil {
		return err
	}
	line("scheduler", "%s", reason)
	free, err := s.freeNodes(ctx)
	if err != nil {
		return err
	}
	line("elsewhere", "%s would be free, but has none of the data", strings.Join(free, ", "))
	line("gravity", "of %s: %s", p.volume.Name, gravity(p.volume))
	return s.showVolumes(ctx)
}

// freeNodes returns the nodes that only the volume excludes for the pod.
func (s *story) freeNodes(ctx context.Context) ([]string, error) {
	pods, err := s.home.client.CoreV1().Pods(homeNamespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	taken := map[string]bool{}
	for _, pod := range pods.Items {
		taken[pod.Spec.NodeName] = true
	}
	nodes, err := s.home.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var free []string
	for _, node := range nodes.Items {
		if !taken[node.Name] && !node.Spec.Unschedulable {
			free = append(free, "node "+node.Name)
		}
	}
	return free, nil
}

// showVolumes shows the output of the driver's program about the volumes.
func (s *story) showVolumes(ctx context.Context) error {
	return s.command(ctx, "volumes", "--namespace", homeNamespace)
}

func (s *story) removeDiary(ctx context.Context, pages ...*page) error {
	if err := s.home.client.AppsV1().StatefulSets(homeNamespace).Delete(ctx, diary, metav1.DeleteOptions{}); err != nil {
		return err
	}
	for _, p := range pages {
		if err := s.home.client.CoreV1().PersistentVolumeClaims(homeNamespace).Delete(ctx, p.claim, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	for _, p := range pages {
		if err := s.showDeleted(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// lastEvents returns the events that users read when a pod does not start.
func (s *story) lastEvents(ctx context.Context) string {
	events, err := s.home.client.CoreV1().Events(homeNamespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	said := map[string]string{}
	for _, event := range events.Items {
		said[event.InvolvedObject.Name] = event.Message
	}
	return fmt.Sprint(said)
}

func (s *story) until(ctx context.Context, what string, condition func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	return machine.Until(ctx, what, func() error { return condition(ctx) })
}

// checkDeleted returns an error while the object exists.
func checkDeleted(err error, what string) error {
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err == nil, apierrors.IsConflict(err):
		return fmt.Errorf("%s still exists", what)
	}
	return err
}
