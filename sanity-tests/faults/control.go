package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"
)

// request asks for a new setting, or without one for the present.
type request struct {
	Proxy string
	Set   *Setting `json:",omitempty"`
}

type answer struct {
	Setting Setting
	Error   string `json:",omitempty"`
}

// ServeControl answers clients on a listener: they switch the proxies by name.
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
		go answerOne(conn, proxies)
	}
}

func answerOne(conn net.Conn, proxies map[string]*Proxy) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	var ask request
	if err := json.NewDecoder(conn).Decode(&ask); err != nil {
		return
	}
	_ = json.NewEncoder(conn).Encode(func() answer {
		proxy, known := proxies[ask.Proxy]
		if !known {
			return answer{Error: fmt.Sprintf("there is no fault proxy for %q", ask.Proxy)}
		}
		if ask.Set != nil {
			if err := proxy.Set(*ask.Set); err != nil {
				return answer{Error: err.Error()}
			}
		}
		return answer{Setting: proxy.Setting()}
	}())
}

// Client switches one proxy of a running lab.
type Client struct {
	socket, proxy string
}

// NewClient makes a client for the proxy of that name behind a control socket.
func NewClient(socket, proxy string) *Client { return &Client{socket: socket, proxy: proxy} }

// Set changes what the proxy does; it holds when Set returns.
func (c *Client) Set(ctx context.Context, setting Setting) error {
	if err := setting.validate(); err != nil {
		return err
	}
	_, err := c.ask(ctx, request{Proxy: c.proxy, Set: &setting})
	return err
}

// Get returns what the proxy does.
func (c *Client) Get(ctx context.Context) (Setting, error) {
	return c.ask(ctx, request{Proxy: c.proxy})
}

func (c *Client) ask(ctx context.Context, ask request) (Setting, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", c.socket)
	if err != nil {
		return Setting{}, fmt.Errorf("reach the fault proxy (is the lab up?): %w", err)
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	if err := json.NewEncoder(conn).Encode(ask); err != nil {
		return Setting{}, fmt.Errorf("ask the fault proxy: %w", err)
	}
	var reply answer
	if err := json.NewDecoder(conn).Decode(&reply); err != nil {
		return Setting{}, fmt.Errorf("hear from the fault proxy: %w", err)
	}
	if reply.Error != "" {
		return Setting{}, errors.New(reply.Error)
	}
	return reply.Setting, nil
}
