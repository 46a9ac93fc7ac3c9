package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"storage.liqo.io/sanity-tests/driver"
)

var volumeMoves = schema.GroupVersionResource{Group: "storage.liqo.io", Version: "v1alpha1", Resource: "volumemoves"}

// showMove moves the volume of a page home while its pod uses it, and shows that the next pod reads
// everything that was written before. Then it releases the source.
func (s *story) showMove(ctx context.Context, p *page, lines int) error {
	node, err := s.freeHomeNode(ctx)
	if err != nil {
		return err
	}
	claims := s.home.client.CoreV1().PersistentVolumeClaims(homeNamespace)
	claim, err := claims.Get(ctx, p.claim, metav1.GetOptions{})
	if err != nil {
		return err
	}
	old := *p
	if err := s.command(ctx, "move", "volume", p.claim, "--namespace", homeNamespace, "--target-node", node, "--evict"); err != nil {
		return err
	}
	fmt.Println()
	p.at = s.home
	if err := s.showReturn(ctx, p, lines); err != nil {
		return err
	}
	if err := s.showVolume(ctx, p); err != nil {
		return err
	}
	now, err := claims.Get(ctx, p.claim, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if now.UID != claim.UID {
		return fmt.Errorf("the claim %s is another one: it has the uid %s, and had %s", p.claim, now.UID, claim.UID)
	}
	line("claim", "%s is the same as before, with the uid %s", p.claim, now.UID)
	return s.releaseSource(ctx, &old)
}

// releaseSource deletes the VolumeMove before retainSource has passed.
func (s *story) releaseSource(ctx context.Context, old *page) error {
	moves := s.dynamic.Resource(volumeMoves).Namespace(homeNamespace)
	found, err := moves.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, one := range found.Items {
		until, _, _ := unstructured.NestedString(one.Object, "status", "retainedUntil")
		line("source", "would be kept until %s; the VolumeMove %s is deleted, and so it is released now", until, one.GetName())
		if err := moves.Delete(ctx, one.GetName(), metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	return s.showTwinDeleted(ctx, old)
}

// freeHomeNode returns a node of the home cluster without a pod of the demo.
func (s *story) freeHomeNode(ctx context.Context) (string, error) {
	free, err := s.freeNodes(ctx)
	if err != nil {
		return "", err
	}
	for _, node := range free {
		if name := strings.TrimPrefix(node, "node "); name != virtualNode {
			return name, nil
		}
	}
	return "", errors.New("no node of the home cluster is free")
}

// command runs the driver's program, and prints its output while it runs.
func (s *story) command(ctx context.Context, args ...string) error {
	program, err := driver.Compile(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("\n  $ liqo-csi %s\n", strings.Join(args, " "))
	cmd := exec.CommandContext(ctx, program, append(args, "--kubeconfig", s.home.cluster.Kubeconfig())...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	var complaint strings.Builder
	cmd.Stderr = &complaint
	if err := cmd.Start(); err != nil {
		return err
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		fmt.Println("  " + lines.Text())
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("liqo-csi %s: %w: %s", args[0], err, complaint.String())
	}
	return nil
}
