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

// Settled takes stock until two stocks, a pause apart, are equal: what is still being removed when a
// test begins would count as lost in the end.
func Settled(ctx context.Context, pause time.Duration, take func(context.Context) (Stock, error)) (Stock, error) {
	last, err := take(ctx)
	for err == nil {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("the stock does not settle: %w", context.Cause(ctx))
		case <-time.After(pause):
		}
		var next Stock
		if next, err = take(ctx); err != nil {
			break
		}
		more, less := next.Beyond(last), last.Beyond(next)
		if len(more)+len(less) == 0 {
			return next, nil
		}
		if ctx.Err() != nil {
			err = fmt.Errorf("the stock does not settle: came %s; went %s", strings.Join(more, ", "), strings.Join(less, ", "))
		}
		last = next
	}
	return nil, err
}

// Book keeps the stocks with which tests began, by the names of the tests. A test whose account was
// never settled, because it leaked or was killed, is compared with the stock of its first attempt:
// what that leaked fails the second one.
type Book struct{ dir string }

// LabBook is the book of the lab on this machine; it goes with the lab.
func LabBook() Book { return Book{machine.Path("accounts")} }

func (b Book) file(test string) string { return filepath.Join(b.dir, url.PathEscape(test)+".json") }

// Before is the stock with which the first attempt of a test began, and that of now at the first.
// again tells when the first attempt was; it is empty at the first.
func (b Book) Before(test string, now func() (Stock, error)) (stock Stock, again string, err error) {
	text, err := os.ReadFile(b.file(test))
	if err == nil {
		info, err := os.Stat(b.file(test))
		if err != nil {
			return nil, "", err
		}
		if err := json.Unmarshal(text, &stock); err != nil {
			return nil, "", fmt.Errorf("read %s: %w", b.file(test), err)
		}
		return stock, info.ModTime().Format(time.TimeOnly), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, "", err
	}
	if stock, err = now(); err != nil {
		return nil, "", err
	}
	if text, err = json.Marshal(stock); err != nil {
		return nil, "", err
	}
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return nil, "", err
	}
	return stock, "", machine.WriteFile(b.file(test), text, 0o644)
}

// Settle forgets the stock of a test that has leaked and lost nothing.
func (b Book) Settle(test string) error { return os.Remove(b.file(test)) }
