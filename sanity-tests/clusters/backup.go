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

// Backup is what the etcd of a cluster held at one time.
type Backup struct {
	cluster *Cluster
	values  map[string][]byte
}

// everything is where the API server has its objects.
const everything = "/registry/"

// Backup takes one of all objects but those that etcd removes by itself.
func (c *Cluster) Backup(ctx context.Context) (*Backup, error) {
	values, err := c.stored(ctx)
	if err != nil {
		return nil, fmt.Errorf("back up the cluster %s: %w", c.Name(), err)
	}
	return &Backup{c, values}, nil
}

// Restore brings the cluster back to the backup while nobody can use it. Revisions go
// on, as after `etcdutl snapshot restore --bump-revision`, so that nobody's watch is from
// a time that has not been yet.
func (b *Backup) Restore(ctx context.Context) error {
	if err := b.cluster.Kill(ctx, apiServer); err != nil {
		return err
	}
	err := b.write(ctx)
	if err != nil {
		err = fmt.Errorf("restore the cluster %s: %w", b.cluster.Name(), err)
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
		if _, err := b.cluster.askEtcd(ctx, "deleterange", map[string][]byte{"key": []byte(key)}); err != nil {
			return err
		}
	}
	for key, value := range b.values {
		if bytes.Equal(now[key], value) {
			continue
		}
		if _, err := b.cluster.askEtcd(ctx, "put", map[string][]byte{"key": []byte(key), "value": value}); err != nil {
			return err
		}
	}
	return nil
}

// stored is what etcd has under each key.
func (c *Cluster) stored(ctx context.Context) (map[string][]byte, error) {
	after := strings.TrimSuffix(everything, "/") + string('/'+1)
	answer, err := c.askEtcd(ctx, "range", map[string][]byte{"key": []byte(everything), "range_end": []byte(after)})
	if err != nil {
		return nil, err
	}
	var found struct {
		KVs []struct{ Key, Value []byte }
	}
	if err := json.Unmarshal(answer, &found); err != nil {
		return nil, fmt.Errorf("read what etcd has: %w", err)
	}
	values := map[string][]byte{}
	for _, one := range found.KVs {
		key := string(one.Key)
		if !strings.HasPrefix(key, everything+"events/") && !strings.HasPrefix(key, everything+"masterleases/") {
			values[key] = one.Value
		}
	}
	return values, nil
}

// askEtcd makes a call of etcd's JSON gateway, which has bytes in base64 as Go has them.
func (c *Cluster) askEtcd(ctx context.Context, call string, what map[string][]byte) (answer []byte, err error) {
	body, err := json.Marshal(what)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.etcdURL()+"/v3/kv/"+call, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	return c.ask(c.controlPlaneNet(), request)
}
