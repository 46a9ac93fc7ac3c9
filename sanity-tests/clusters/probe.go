package clusters

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"storage.liqo.io/sanity-tests/machine"
)

// controlPlaneHealthy checks the health of a component of the control plane.
func (c *Cluster) controlPlaneHealthy(ctx context.Context, component string) error {
	switch component {
	case etcd:
		return c.get(ctx, c.controlPlaneNet(), "http://127.0.0.1:2381/readyz")
	case apiServer:
		return c.get(ctx, c.controlPlaneNet(), c.internalURL()+"/readyz")
	case controllerManager:
		return c.get(ctx, c.controlPlaneNet(), "https://127.0.0.1:10257/healthz")
	case scheduler:
		return c.get(ctx, c.controlPlaneNet(), "https://127.0.0.1:10259/healthz")
	case coreDNS:
		return c.get(ctx, c.controlPlaneNet(), "http://"+dnsReady+"/ready")
	}
	return fmt.Errorf("no component %q in the control plane", component)
}

// get succeeds when a URL inside a network namespace returns 200 to the administrator.
func (c *Cluster) get(ctx context.Context, namespace machine.Namespace, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	_, err = c.do(namespace, request)
	return err
}

// do sends a request of the administrator inside a network namespace, and returns the body of a 200.
func (c *Cluster) do(namespace machine.Namespace, request *http.Request) (body []byte, err error) {
	tlsConfig, err := c.adminTLS()
	if err != nil {
		return nil, err
	}
	client := http.Client{Transport: &http.Transport{
		TLSClientConfig:   tlsConfig,
		DisableKeepAlives: true,
		DialContext:       dialIn(namespace),
	}}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(response.Body, 2000))
		return nil, fmt.Errorf("%s: %s: %s", request.URL, response.Status, body)
	}
	return io.ReadAll(response.Body)
}

// dialIn connects from inside a network namespace.
func dialIn(namespace machine.Namespace) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		err = namespace.InNetwork(func() error {
			conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
			return err
		})
		return conn, err
	}
}

func (c *Cluster) adminTLS() (*tls.Config, error) {
	authority, err := os.ReadFile(c.pki().Cert(clusterCA))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authority) {
		return nil, errors.New("the cluster's authority is not a certificate")
	}
	admin, err := tls.LoadX509KeyPair(c.pki().Cert(adminUser), c.pki().Key(adminUser))
	if err != nil {
		return nil, err
	}
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{admin}, MinVersion: tls.VersionTLS12}, nil
}
