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

// kernelSettings are the machine-wide settings that kubelets change; none of
// them has a namespace.
var kernelSettings = []string{
	"vm/overcommit_memory", "vm/panic_on_oom",
	"kernel/panic", "kernel/panic_on_oops",
	"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
}

const sysctlDir = "/proc/sys"

func settingsFile() string { return Path("kernel-settings.json") }

// rememberSettings notes the settings as they were before the first start.
func rememberSettings() error {
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
		return fmt.Errorf("note the kernel's settings: %w", err)
	}
	return nil
}

// restoreSettings puts them back.
func restoreSettings() error {
	content, err := os.ReadFile(settingsFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the kernel's former settings: %w", err)
	}
	settings := map[string]string{}
	if err := json.Unmarshal(content, &settings); err != nil {
		return fmt.Errorf("read the kernel's former settings: %w", err)
	}
	var failures error
	for name, value := range settings {
		if err := os.WriteFile(filepath.Join(sysctlDir, name), []byte(value), 0o644); err != nil {
			failures = errors.Join(failures, fmt.Errorf("restore the kernel setting %s: %w", name, err))
		}
	}
	return failures
}
