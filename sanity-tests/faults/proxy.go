package faults

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// Proxy accepts connections and forwards each to one of dial.
type Proxy struct {
	dial func(context.Context) (net.Conn, error)

	mu      sync.Mutex
	setting Setting
	changed chan struct{} // closed and replaced with every new setting
	links   map[*link]struct{}
}

// NewProxy returns a proxy in mode Pass.
func NewProxy(dial func(context.Context) (net.Conn, error)) *Proxy {
	return &Proxy{
		dial:    dial,
		setting: Setting{Mode: Pass},
		changed: make(chan struct{}),
		links:   map[*link]struct{}{},
	}
}

// Serve accepts connections until the listener is closed or ctx is done.
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

// Set changes the setting, also of existing connections.
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
		link.apply(setting.Mode)
	}
	return nil
}

// Setting returns the current setting.
func (p *Proxy) Setting() Setting {
	setting, _ := p.current()
	return setting
}

func (p *Proxy) current() (Setting, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.setting, p.changed
}

// waitWhileHanging waits until the mode is not Hang.
func (p *Proxy) waitWhileHanging(ctx context.Context) (Setting, error) {
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
	link.apply(p.setting.Mode)
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.links, link)
		p.mu.Unlock()
	}()

	if _, err := p.waitWhileHanging(ctx); err != nil {
		return
	}
	server, err := p.dial(ctx)
	if err != nil || !link.connected(server) {
		return
	}
	var directions sync.WaitGroup
	directions.Go(func() { link.forward(ctx, client, server, func(s Setting) time.Duration { return s.Up }) })
	directions.Go(func() { link.forward(ctx, server, client, func(s Setting) time.Duration { return s.Down }) })
	directions.Wait()
}

// link is one connection through the proxy.
type link struct {
	proxy  *Proxy
	ended  context.CancelFunc
	client net.Conn

	mu     sync.Mutex
	server net.Conn
	dead   bool // it was half-open
	closed bool
}

// apply applies a new mode to the connection.
func (l *link) apply(mode Mode) {
	switch mode {
	case HalfOpen:
		l.mu.Lock()
		l.dead = true
		l.mu.Unlock()
	case Reset:
		l.reset()
	}
}

// reset closes both ends with RST instead of FIN.
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

// chunk is a part of a stream, and when to forward it. No bytes mean the end of the stream.
type chunk struct {
	bytes []byte
	due   time.Time
}

// forward copies one direction. Separate goroutines read and write, so that a delay adds latency and
// does not reduce throughput.
func (l *link) forward(ctx context.Context, from, to net.Conn, delay func(Setting) time.Duration) {
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
		return // neither side is notified that the other has closed
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
	if _, err := l.proxy.waitWhileHanging(ctx); err != nil {
		return false
	}
	if l.isDead() || len(piece.bytes) == 0 {
		return true
	}
	_, err := to.Write(piece.bytes)
	return err == nil
}
