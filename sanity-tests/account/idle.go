package account

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"storage.liqo.io/sanity-tests/nodes"
)

// Idle returns the volumes that are staged on a node and not published, according to the node plugin's
// records.
func Idle(node *nodes.Node) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(node.KubeletRoot(), recordDir, "*"))
	if err != nil {
		return nil, err
	}
	var idle []string
	for _, file := range files {
		content, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		var record struct {
			VolumeID string         `json:"volumeId"`
			Targets  map[string]any `json:"targets"`
		}
		if err := json.Unmarshal(content, &record); err != nil {
			return nil, fmt.Errorf("record %s on %s: %w", filepath.Base(file), node.Name, err)
		}
		if len(record.Targets) == 0 {
			idle = append(idle, record.VolumeID)
		}
	}
	return idle, nil
}
