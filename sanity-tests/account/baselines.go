package account

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"storage.liqo.io/sanity-tests/machine"
)

// WaitStable lists until two inventories, a pause apart, are equal: what is being deleted when a test
// starts would count as lost at its end.
func WaitStable(ctx context.Context, pause time.Duration, list func(context.Context) (Inventory, error)) (Inventory, error) {
	last, err := list(ctx)
	for err == nil {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("the inventory is not stable: %w", context.Cause(ctx))
		case <-time.After(pause):
		}
		var next Inventory
		if next, err = list(ctx); err != nil {
			break
		}
		added, removed := next.Except(last), last.Except(next)
		if len(added)+len(removed) == 0 {
			return next, nil
		}
		if ctx.Err() != nil {
			err = fmt.Errorf("the inventory is not stable: added %s; removed %s", strings.Join(added, ", "), strings.Join(removed, ", "))
		}
		last = next
	}
	return nil, err
}

// Baselines stores the inventories before tests, by test name. A test that leaked or was killed is compared
// with the inventory before its first attempt, so that a leak of that fails the retry too.
type Baselines struct{ dir string }

// LabBaselines returns the store in the lab's state directory.
func LabBaselines() Baselines { return Baselines{machine.Path("accounts")} }

func (b Baselines) file(test string) string {
	return filepath.Join(b.dir, url.PathEscape(test)+".json")
}

// Before returns the inventory before the first attempt of a test; at the first attempt it stores the
// current one. first is the time of the first attempt, and "" at the first attempt.
func (b Baselines) Before(test string, now func() (Inventory, error)) (inventory Inventory, first string, err error) {
	text, err := os.ReadFile(b.file(test))
	if err == nil {
		info, err := os.Stat(b.file(test))
		if err != nil {
			return nil, "", err
		}
		if err := json.Unmarshal(text, &inventory); err != nil {
			return nil, "", fmt.Errorf("read %s: %w", b.file(test), err)
		}
		return inventory, info.ModTime().Format(time.TimeOnly), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, "", err
	}
	if inventory, err = now(); err != nil {
		return nil, "", err
	}
	if text, err = json.Marshal(inventory); err != nil {
		return nil, "", err
	}
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return nil, "", err
	}
	return inventory, "", machine.WriteFile(b.file(test), text, 0o644)
}

// Delete deletes the inventory of a test that has leaked and lost nothing.
func (b Baselines) Delete(test string) error { return os.Remove(b.file(test)) }
