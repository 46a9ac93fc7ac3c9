package account

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func stockOf(things ...string) Stock {
	stock := Stock{}
	for _, thing := range things {
		stock.add("%s", thing)
	}
	return stock
}

func TestAStockThatChangesIsTakenAgain(t *testing.T) {
	takes := []Stock{stockOf("a", "b"), stockOf("a"), stockOf("c"), stockOf("c"), stockOf("d")}
	next := func(context.Context) (Stock, error) {
		stock := takes[0]
		takes = takes[1:]
		return stock, nil
	}
	stock, err := Settled(t.Context(), time.Millisecond, next)
	if err != nil || len(stock) != 1 || len(stock.Beyond(stockOf("c"))) > 0 {
		t.Errorf("%v, %v", stock, err)
	}
}

func TestAStockThatNeverSettlesIsAnError(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	count := 0
	_, err := Settled(ctx, time.Millisecond, func(context.Context) (Stock, error) {
		if count++; count == 3 {
			cancel(errors.New("time is up"))
		}
		return stockOf(strings.Repeat("a", count)), nil
	})
	if err == nil || !strings.Contains(err.Error(), "does not settle") {
		t.Error(err)
	}
	if _, err := Settled(t.Context(), time.Millisecond, func(context.Context) (Stock, error) { return nil, errors.New("no API server") }); err == nil {
		t.Error("that no stock can be taken is no error")
	}
}

// What a first attempt leaked must not be what the second one begins with.
func TestASecondAttemptIsComparedWithTheFirst(t *testing.T) {
	book := Book{t.TempDir()}
	const test = "TestOne/a leg, with/slashes"
	before := func(now Stock) (Stock, string) {
		t.Helper()
		stock, again, err := book.Before(test, func() (Stock, error) { return now, nil })
		if err != nil {
			t.Fatal(err)
		}
		return stock, again
	}
	if _, again := before(stockOf("a")); again != "" {
		t.Errorf("the first attempt is said to have been at %s", again)
	}
	leaky := stockOf("a", "leaked")
	stock, again := before(leaky)
	if again == "" || len(leaky.Beyond(stock)) != 1 {
		t.Errorf("compared with %v, %q", stock, again)
	}
	if err := book.Settle(test); err != nil {
		t.Fatal(err)
	}
	if stock, again := before(leaky); again != "" || len(leaky.Beyond(stock)) > 0 {
		t.Errorf("after it was settled compared with %v, %q", stock, again)
	}
}
