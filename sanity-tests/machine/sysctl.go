package machine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// kernelSettings are sysctls without namespace that kubelets change.
var kernelSettings = []string{
	"vm/overcommit_memory", "vm/panic_on_oom",
	"kernel/panic", "kernel/panic_on_oops",
	"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
}

const sysctlDir = "/proc/sys"

func settingsFile() string { return Path("kernel-settings.json") }

// saveSettings saves the settings before the first start.
func saveSettings() error {
	if _, err := os.Stat(settingsFile()); err == nil {
		return nil
	}
	settings := map[string]string{}
	for _, name := range kernelSettings {
		if value, err := os.ReadFile(filepath.Join(sysctlDir, name)); err == nil {
			settings[name] = strings.TrimSpace(string(value))
		}
	}
	content, err := json.MarshalIndent(settings, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(settingsFile(), content, 0o644); err != nil {
		return fmt.Errorf("save the kernel's settings: %w", err)
	}
	return nil
}

func restoreSettings() error {
	content, err := os.ReadFile(settingsFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the saved kernel settings: %w", err)
	}
	settings := map[string]string{}
	if err := json.Unmarshal(content, &settings); err != nil {
		return fmt.Errorf("read the saved kernel settings: %w", err)
	}
	var failures error
	for name, value := range settings {
		if err := os.WriteFile(filepath.Join(sysctlDir, name), []byte(value), 0o644); err != nil {
			failures = errors.Join(failures, fmt.Errorf("restore the kernel setting %s: %w", name, err))
		}
	}
	return failures
}
