package faults

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	timeout = 20 * time.Second
	// silence is how long requireSilence waits.
	silence = 200 * time.Millisecond
)

// behindProxy starts an echo server, and a proxy in front of it.
func behindProxy(t *testing.T) (proxy *Proxy, address string) {
	t.Helper()
	server := listen(t)
	go func() {
		for {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			go func() { defer conn.Close(); _, _ = io.Copy(conn, conn) }()
		}
	}()
	proxy = NewProxy(func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", server.Addr().String())
	})
	front := listen(t)
	go func() { _ = proxy.Serve(t.Context(), front) }()
	return proxy, front.Addr().String()
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

// peer is a client of the echo server.
type peer struct {
	net.Conn
	lines *bufio.Reader
}

func connect(t *testing.T, address string) *peer {
	t.Helper()
	conn, err := net.DialTimeout("tcp", address, timeout)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &peer{conn, bufio.NewReader(conn)}
}

func (p *peer) send(line string) error {
	_, err := p.Write([]byte(line + "\n"))
	return err
}

func (p *peer) receive(limit time.Duration) (string, error) {
	_ = p.SetReadDeadline(time.Now().Add(limit))
	line, err := p.lines.ReadString('\n')
	return strings.TrimSuffix(line, "\n"), err
}

func requireEcho(t *testing.T, p *peer, line string) {
	t.Helper()
	if err := p.send(line); err != nil {
		t.Fatal(err)
	}
	if got, err := p.receive(timeout); err != nil || got != line {
		t.Fatalf("received %q, %v; want %q", got, err, line)
	}
}

func requireSilence(t *testing.T, p *peer) {
	t.Helper()
	if got, err := p.receive(silence); !isTimeout(err) {
		t.Fatalf("received %q, %v; want nothing", got, err)
	}
}

func isTimeout(err error) bool {
	var failure net.Error
	return errors.As(err, &failure) && failure.Timeout()
}

func set(t *testing.T, proxy *Proxy, setting Setting) {
	t.Helper()
	if err := proxy.Set(setting); err != nil {
		t.Fatal(err)
	}
}

func TestPassForwardsDataAndEndOfStream(t *testing.T) {
	_, address := behindProxy(t)
	client := connect(t, address)
	requireEcho(t, client, "hello")
	if err := client.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := client.receive(timeout); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
}

func TestHangDelaysDataUntilPass(t *testing.T) {
	proxy, address := behindProxy(t)
	before := connect(t, address)
	requireEcho(t, before, "before")
	set(t, proxy, Setting{Mode: Hang})
	after := connect(t, address)
	for _, client := range []*peer{before, after} {
		if err := client.send("during"); err != nil {
			t.Fatal(err)
		}
		requireSilence(t, client)
	}
	set(t, proxy, Setting{Mode: Pass})
	for _, client := range []*peer{before, after} {
		if got, err := client.receive(timeout); err != nil || got != "during" {
			t.Errorf("received %q, %v", got, err)
		}
	}
}

func TestHalfOpenConnectionsNeverRecover(t *testing.T) {
	proxy, address := behindProxy(t)
	old := connect(t, address)
	requireEcho(t, old, "before")
	set(t, proxy, Setting{Mode: HalfOpen})
	if err := old.send("lost"); err != nil {
		t.Fatal(err)
	}
	requireSilence(t, old)
	set(t, proxy, Setting{Mode: Pass})
	if err := old.send("lost, too"); err != nil {
		t.Fatal(err)
	}
	requireSilence(t, old)
	requireEcho(t, connect(t, address), "after")
}

func TestResetClosesConnectionsWithRST(t *testing.T) {
	proxy, address := behindProxy(t)
	client := connect(t, address)
	requireEcho(t, client, "before")
	set(t, proxy, Setting{Mode: Reset})
	if _, err := client.receive(timeout); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("received %v", err)
	}
	set(t, proxy, Setting{Mode: Pass})
	requireEcho(t, connect(t, address), "after")
}

func TestDelayAppliesInBothDirections(t *testing.T) {
	proxy, address := behindProxy(t)
	set(t, proxy, Setting{Mode: Delay, Up: 100 * time.Millisecond, Down: 150 * time.Millisecond})
	client := connect(t, address)
	start := time.Now()
	requireEcho(t, client, "hello")
	if took := time.Since(start); took < 250*time.Millisecond {
		t.Errorf("a round trip took %s", took)
	}
}

func TestControlSetsProxiesByName(t *testing.T) {
	proxy, _ := behindProxy(t)
	socket := filepath.Join(t.TempDir(), "control")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = ServeControl(t.Context(), listener, map[string]*Proxy{"remote": proxy}) }()

	want := Setting{Mode: Delay, Up: time.Second}
	client := NewClient(socket, "remote")
	if err := client.Set(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	if got, err := client.Get(t.Context()); err != nil || got != want || proxy.Setting() != want {
		t.Errorf("got %v, %v", got, err)
	}
	for text, err := range map[string]error{
		`no fault proxy for "other"`: NewClient(socket, "other").Set(t.Context(), want),
		"unknown fault mode":         client.Set(t.Context(), Setting{Mode: "slow"}),
		"is the lab up?":             NewClient(socket+"x", "remote").Set(t.Context(), want),
	} {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v, want %q", err, text)
		}
	}
}
