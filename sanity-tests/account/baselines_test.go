package account

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func inventoryOf(items ...string) Inventory {
	inventory := Inventory{}
	for _, item := range items {
		inventory.add("%s", item)
	}
	return inventory
}

func TestWaitStableListsAgainAfterAChange(t *testing.T) {
	inventories := []Inventory{inventoryOf("a", "b"), inventoryOf("a"), inventoryOf("c"), inventoryOf("c"), inventoryOf("d")}
	next := func(context.Context) (Inventory, error) {
		inventory := inventories[0]
		inventories = inventories[1:]
		return inventory, nil
	}
	inventory, err := WaitStable(t.Context(), time.Millisecond, next)
	if err != nil || len(inventory) != 1 || len(inventory.Except(inventoryOf("c"))) > 0 {
		t.Errorf("%v, %v", inventory, err)
	}
}

func TestInventoryThatKeepsChangingIsAnError(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	count := 0
	_, err := WaitStable(ctx, time.Millisecond, func(context.Context) (Inventory, error) {
		if count++; count == 3 {
			cancel(errors.New("time is up"))
		}
		return inventoryOf(strings.Repeat("a", count)), nil
	})
	if err == nil || !strings.Contains(err.Error(), "is not stable") {
		t.Error(err)
	}
	if _, err := WaitStable(t.Context(), time.Millisecond, func(context.Context) (Inventory, error) { return nil, errors.New("no API server") }); err == nil {
		t.Error("an error of the list is lost")
	}
}

func TestRetryIsComparedWithTheFirstAttempt(t *testing.T) {
	baselines := Baselines{t.TempDir()}
	const test = "TestOne/a leg, with/slashes"
	before := func(now Inventory) (Inventory, string) {
		t.Helper()
		inventory, first, err := baselines.Before(test, func() (Inventory, error) { return now, nil })
		if err != nil {
			t.Fatal(err)
		}
		return inventory, first
	}
	if _, first := before(inventoryOf("a")); first != "" {
		t.Errorf("the first attempt was at %s", first)
	}
	leaky := inventoryOf("a", "leaked")
	inventory, first := before(leaky)
	if first == "" || len(leaky.Except(inventory)) != 1 {
		t.Errorf("compared with %v, %q", inventory, first)
	}
	if err := baselines.Delete(test); err != nil {
		t.Fatal(err)
	}
	if inventory, first := before(leaky); first != "" || len(leaky.Except(inventory)) > 0 {
		t.Errorf("after the deletion compared with %v, %q", inventory, first)
	}
}
