package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"
)

// request sets the setting of a proxy, or reads it if Set is nil.
type request struct {
	Proxy string
	Set   *Setting `json:",omitempty"`
}

type response struct {
	Setting Setting
	Error   string `json:",omitempty"`
}

// ServeControl serves requests of clients that set the proxies by name.
func ServeControl(ctx context.Context, listener net.Listener, proxies map[string]*Proxy) error {
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	for {
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("serve the control socket: %w", err)
		}
		go serveOne(conn, proxies)
	}
}

func serveOne(conn net.Conn, proxies map[string]*Proxy) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	var r request
	if err := json.NewDecoder(conn).Decode(&r); err == nil {
		_ = json.NewEncoder(conn).Encode(r.apply(proxies))
	}
}

func (r request) apply(proxies map[string]*Proxy) response {
	proxy, known := proxies[r.Proxy]
	if !known {
		return response{Error: fmt.Sprintf("there is no fault proxy for %q", r.Proxy)}
	}
	if r.Set != nil {
		if err := proxy.Set(*r.Set); err != nil {
			return response{Error: err.Error()}
		}
	}
	return response{Setting: proxy.Setting()}
}

// Client controls one proxy of a running lab.
type Client struct {
	socket, proxy string
}

// NewClient returns a client of the proxy with that name, through a control socket.
func NewClient(socket, proxy string) *Client { return &Client{socket: socket, proxy: proxy} }

// Set changes the setting of the proxy, which is in effect when Set returns.
func (c *Client) Set(ctx context.Context, setting Setting) error {
	if err := setting.validate(); err != nil {
		return err
	}
	_, err := c.send(ctx, request{Proxy: c.proxy, Set: &setting})
	return err
}

// Get returns the setting of the proxy.
func (c *Client) Get(ctx context.Context) (Setting, error) {
	return c.send(ctx, request{Proxy: c.proxy})
}

func (c *Client) send(ctx context.Context, r request) (Setting, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", c.socket)
	if err != nil {
		return Setting{}, fmt.Errorf("reach the fault proxy (is the lab up?): %w", err)
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	if err := json.NewEncoder(conn).Encode(r); err != nil {
		return Setting{}, fmt.Errorf("send a request to the fault proxy: %w", err)
	}
	var reply response
	if err := json.NewDecoder(conn).Decode(&reply); err != nil {
		return Setting{}, fmt.Errorf("read the response of the fault proxy: %w", err)
	}
	if reply.Error != "" {
		return Setting{}, errors.New(reply.Error)
	}
	return reply.Setting, nil
}
