package faults

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// Proxy accepts connections and forwards each to what dial reaches.
type Proxy struct {
	dial func(context.Context) (net.Conn, error)

	mu      sync.Mutex
	setting Setting
	changed chan struct{} // closed and replaced with every new setting
	links   map[*link]struct{}
}

// NewProxy makes a proxy that passes everything.
func NewProxy(dial func(context.Context) (net.Conn, error)) *Proxy {
	return &Proxy{
		dial:    dial,
		setting: Setting{Mode: Pass},
		changed: make(chan struct{}),
		links:   map[*link]struct{}{},
	}
}

// Serve accepts connections until the listener is closed or ctx ends.
func (p *Proxy) Serve(ctx context.Context, listener net.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	for {
		client, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		go p.handle(ctx, client)
	}
}

// Set changes what the proxy does, from now on and to connections that exist.
func (p *Proxy) Set(setting Setting) error {
	if err := setting.validate(); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.setting = setting
	close(p.changed)
	p.changed = make(chan struct{})
	for link := range p.links {
		link.suffer(setting.Mode)
	}
	return nil
}

// Setting is what the proxy does now.
func (p *Proxy) Setting() Setting {
	setting, _ := p.current()
	return setting
}

func (p *Proxy) current() (Setting, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.setting, p.changed
}

// settled waits until the proxy does anything but hang.
func (p *Proxy) settled(ctx context.Context) (Setting, error) {
	for {
		setting, changed := p.current()
		if setting.Mode != Hang {
			return setting, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return setting, ctx.Err()
		}
	}
}

func (p *Proxy) handle(ctx context.Context, client net.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	link := &link{proxy: p, client: client, ended: cancel}
	defer link.close()
	p.mu.Lock()
	p.links[link] = struct{}{}
	link.suffer(p.setting.Mode)
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.links, link)
		p.mu.Unlock()
	}()

	if _, err := p.settled(ctx); err != nil {
		return
	}
	server, err := p.dial(ctx)
	if err != nil || !link.connected(server) {
		return
	}
	var directions sync.WaitGroup
	directions.Go(func() { link.pump(ctx, client, server, func(s Setting) time.Duration { return s.Up }) })
	directions.Go(func() { link.pump(ctx, server, client, func(s Setting) time.Duration { return s.Down }) })
	directions.Wait()
}

// link is one connection through the proxy.
type link struct {
	proxy  *Proxy
	ended  context.CancelFunc
	client net.Conn

	mu     sync.Mutex
	server net.Conn
	dead   bool // half-open: silent for ever
	closed bool
}

// suffer applies what a mode does to a connection at once.
func (l *link) suffer(mode Mode) {
	switch mode {
	case HalfOpen:
		l.mu.Lock()
		l.dead = true
		l.mu.Unlock()
	case Reset:
		l.reset()
	}
}

// reset closes both ends with a reset instead of a farewell.
func (l *link) reset() {
	l.mu.Lock()
	for _, end := range []net.Conn{l.client, l.server} {
		if tcp, ok := end.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
	}
	l.mu.Unlock()
	l.close()
}

func (l *link) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.ended()
	_ = l.client.Close()
	if l.server != nil {
		_ = l.server.Close()
	}
}

func (l *link) connected(server net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		_ = server.Close()
		return false
	}
	l.server = server
	return true
}

func (l *link) isDead() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dead
}

// chunk is a piece of a stream and when it may go on; no bytes mean the end of
// the stream.
type chunk struct {
	bytes []byte
	due   time.Time
}

// pump moves one direction. Reading and writing are apart, so that a delay
// makes the stream late and not slow.
func (l *link) pump(ctx context.Context, from, to net.Conn, delay func(Setting) time.Duration) {
	queue := make(chan chunk, 1024)
	go func() {
		defer close(queue)
		for {
			buffer := make([]byte, 32<<10)
			count, err := from.Read(buffer)
			piece := chunk{bytes: buffer[:count], due: time.Now()}
			if setting := l.proxy.Setting(); setting.Mode == Delay {
				piece.due = piece.due.Add(delay(setting))
			}
			if err != nil && !errors.Is(err, io.EOF) {
				if !l.isDead() {
					l.reset()
				}
				return
			}
			select {
			case queue <- piece:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()

	for piece := range queue {
		if !l.deliver(ctx, piece, to) {
			break
		}
	}
	if l.isDead() {
		return // neither side learns that the other has left
	}
	if tcp, ok := to.(interface{ CloseWrite() error }); ok {
		_ = tcp.CloseWrite()
	}
}

func (l *link) deliver(ctx context.Context, piece chunk, to net.Conn) bool {
	select {
	case <-time.After(time.Until(piece.due)):
	case <-ctx.Done():
		return false
	}
	if _, err := l.proxy.settled(ctx); err != nil {
		return false
	}
	if l.isDead() || len(piece.bytes) == 0 {
		return true
	}
	_, err := to.Write(piece.bytes)
	return err == nil
}
