package faults

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// How often a hanging call checks whether its rule still exists.
const recheck = 100 * time.Millisecond

// Injector applies the rules of one state directory.
type Injector struct {
	stateDir string

	mu   sync.Mutex
	hits map[Rule]int
}

// NewInjector returns an injector that reads the rules at each call.
func NewInjector(stateDir string) *Injector {
	return &Injector{stateDir: stateDir, hits: map[Rule]int{}}
}

// SpaceLeft returns the free space of the backend; limited is false if it is not set.
func (i *Injector) SpaceLeft() (bytes int64, limited bool, err error) {
	switches, err := Read(i.stateDir)
	if err != nil || switches.SpaceLeft == nil {
		return 0, false, err
	}
	return *switches.SpaceLeft, true, nil
}

// Around runs work, with the fault of the rule that matches the call.
func (i *Injector) Around(ctx context.Context, call Call, work func() (any, error)) (any, error) {
	rule, found, err := i.take(call)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if !found {
		return work()
	}
	if rule.When != "after" {
		if err := i.inject(ctx, rule, call); err != nil {
			return nil, err
		}
		return work()
	}
	answer, err := work()
	if err != nil {
		return answer, err
	}
	if err := i.inject(ctx, rule, call); err != nil {
		return nil, err
	}
	return answer, nil
}

// take returns the first rule that still applies, and counts its use.
func (i *Injector) take(call Call) (Rule, bool, error) {
	switches, err := Read(i.stateDir)
	if err != nil {
		return Rule{}, false, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	for rule := range i.hits {
		if !slices.Contains(switches.Rules, rule) {
			delete(i.hits, rule)
		}
	}
	for _, rule := range switches.Rules {
		if !rule.Covers(call) || rule.Times > 0 && i.hits[rule] >= rule.Times {
			continue
		}
		i.hits[rule]++
		return rule, true, nil
	}
	return Rule{}, false, nil
}

func (i *Injector) inject(ctx context.Context, rule Rule, call Call) error {
	if rule.Delay != "" {
		delay, err := time.ParseDuration(rule.Delay)
		if err != nil {
			return status.Errorf(codes.Internal, "fault switch for %s: %v", rule.RPC, err)
		}
		if err := wait(ctx, delay); err != nil {
			return err
		}
	}
	for rule.Hang && i.isActive(rule) {
		if err := wait(ctx, recheck); err != nil {
			return err
		}
	}
	if rule.Code == "" {
		return nil
	}
	code, err := parseCode(rule.Code)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	message := rule.Message
	if message == "" {
		message = "fault switch: " + call.RPC + " fails on demand"
	}
	return status.Error(code, message)
}

func (i *Injector) isActive(rule Rule) bool {
	switches, err := Read(i.stateDir)
	return err == nil && slices.Contains(switches.Rules, rule)
}

func wait(ctx context.Context, delay time.Duration) error {
	select {
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-time.After(delay):
		return nil
	}
}

func parseCode(name string) (codes.Code, error) {
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		if code.String() == name {
			return code, nil
		}
	}
	return codes.Unknown, fmt.Errorf("fault switch: %q is no gRPC code; write it like Unavailable or ResourceExhausted", name)
}
