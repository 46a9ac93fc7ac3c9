package clusters

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Backup has the content of a cluster's etcd at one time.
type Backup struct {
	cluster *Cluster
	values  map[string][]byte
}

// registry is the API server's prefix of all objects.
const registry = "/registry/"

// Backup backs up all objects except those with a lease in etcd.
func (c *Cluster) Backup(ctx context.Context) (*Backup, error) {
	values, err := c.stored(ctx)
	if err != nil {
		return nil, fmt.Errorf("back up cluster %s: %w", c.Name(), err)
	}
	return &Backup{c, values}, nil
}

// Restore restores the backup while the API server is stopped. Revisions continue, as with `etcdutl
// snapshot restore --bump-revision`, so that no watch has a resourceVersion of the future.
func (b *Backup) Restore(ctx context.Context) error {
	if err := b.cluster.Kill(ctx, apiServer); err != nil {
		return err
	}
	err := b.write(ctx)
	if err != nil {
		err = fmt.Errorf("restore cluster %s: %w", b.cluster.Name(), err)
	}
	return errors.Join(err, b.cluster.ensureComponent(ctx, apiServer))
}

func (b *Backup) write(ctx context.Context) error {
	now, err := b.cluster.stored(ctx)
	if err != nil {
		return err
	}
	for key := range now {
		if _, known := b.values[key]; known {
			continue
		}
		if _, err := b.cluster.callEtcd(ctx, "deleterange", map[string][]byte{"key": []byte(key)}); err != nil {
			return err
		}
	}
	for key, value := range b.values {
		if bytes.Equal(now[key], value) {
			continue
		}
		if _, err := b.cluster.callEtcd(ctx, "put", map[string][]byte{"key": []byte(key), "value": value}); err != nil {
			return err
		}
	}
	return nil
}

// stored returns the values in etcd by key.
func (c *Cluster) stored(ctx context.Context) (map[string][]byte, error) {
	end := strings.TrimSuffix(registry, "/") + string('/'+1)
	response, err := c.callEtcd(ctx, "range", map[string][]byte{"key": []byte(registry), "range_end": []byte(end)})
	if err != nil {
		return nil, err
	}
	var found struct {
		KVs []struct{ Key, Value []byte }
	}
	if err := json.Unmarshal(response, &found); err != nil {
		return nil, fmt.Errorf("parse the response of etcd: %w", err)
	}
	values := map[string][]byte{}
	for _, kv := range found.KVs {
		key := string(kv.Key)
		if !strings.HasPrefix(key, registry+"events/") && !strings.HasPrefix(key, registry+"masterleases/") {
			values[key] = kv.Value
		}
	}
	return values, nil
}

// callEtcd calls etcd's JSON gateway. Like Go, it encodes bytes as base64.
func (c *Cluster) callEtcd(ctx context.Context, call string, parameters map[string][]byte) (response []byte, err error) {
	body, err := json.Marshal(parameters)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.etcdURL()+"/v3/kv/"+call, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	return c.do(c.controlPlaneNet(), request)
}
