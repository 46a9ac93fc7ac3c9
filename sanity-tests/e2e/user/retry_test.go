package user

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// flaky fails to connect a few times, and then echoes the request.
type flaky struct {
	refusals int
	with     error
}

func (f *flaky) RoundTrip(request *http.Request) (*http.Response, error) {
	sent, err := io.ReadAll(request.Body)
	request.Body.Close()
	if err != nil {
		return nil, err
	}
	if f.refusals > 0 {
		f.refusals--
		return nil, f.with
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(string(sent)))}, nil
}

func TestOnlyFailedConnectionsAreRetried(t *testing.T) {
	dial, read := &net.OpError{Op: "dial", Err: errors.New("refused")}, &net.OpError{Op: "read", Err: errors.New("reset")}
	for what, one := range map[string]struct {
		server flaky
		fails  bool
	}{
		"at once":     {flaky{}, false},
		"refused":     {flaky{2, dial}, false},
		"interrupted": {flaky{1, read}, true},
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://server/", strings.NewReader("body"))
		if err != nil {
			t.Fatal(err)
		}
		response, err := retryingTransport{&one.server}.RoundTrip(request)
		if (err != nil) != one.fails {
			t.Errorf("%s: %v", what, err)
		}
		if err != nil {
			continue
		}
		if got, _ := io.ReadAll(response.Body); string(got) != "body" {
			t.Errorf("%s: %q was sent", what, got)
		}
		response.Body.Close()
	}
}
