package state

import "time"

// Backing is how the content of a volume is stored.
type Backing string

const (
	// Directory is a plain directory, bind-mounted. It has no size of its own.
	Directory Backing = "directory"
	// Ext4 is an image file with an ext4 filesystem, loop-mounted.
	Ext4 Backing = "ext4"
	// XFS is an image file with an xfs filesystem, loop-mounted.
	XFS Backing = "xfs"
	// Raw is an image file without a filesystem, used as a loop device.
	Raw Backing = "raw"
)

// IsFilesystemImage reports whether the content is a filesystem in an image file, which only one
// mount of a kernel may write to.
func (b Backing) IsFilesystemImage() bool { return b == Ext4 || b == XFS }

// Volume is the record of a volume. Tests read these files too.
type Volume struct {
	ID      string  `json:"id"`
	Name    string  `json:"name"`
	Claim   string  `json:"claim,omitempty"` // namespace/name, when the provisioner tells
	Bytes   int64   `json:"bytes"`
	Backing Backing `json:"backing"`
	// Node is the only node that can access the volume; empty means that all can.
	Node           string            `json:"node,omitempty"`
	Parameters     map[string]string `json:"parameters,omitempty"`
	Mutable        map[string]string `json:"mutableParameters,omitempty"`
	SourceVolume   string            `json:"sourceVolume,omitempty"`
	SourceSnapshot string            `json:"sourceSnapshot,omitempty"`
	// Ready is false while the content is being created.
	Ready bool `json:"ready"`
	// Formatted reports whether the image has its filesystem.
	Formatted bool `json:"formatted,omitempty"`
	// Grow makes the next stage expand the filesystem to the image, because the content was copied
	// from a smaller one.
	Grow bool `json:"grow,omitempty"`

	// By node id.
	Attachments map[string]Attachment `json:"attachments,omitempty"`
	Stages      map[string]Stage      `json:"stages,omitempty"`
	// By node id, then target path.
	Publishes map[string]map[string]Publish `json:"publishes,omitempty"`
}

// Attachment is a ControllerPublish that was not undone.
type Attachment struct {
	// Token is in the publish context, and proves to the stage that the context is that of this
	// attachment.
	Token      string `json:"token"`
	ReadOnly   bool   `json:"readOnly,omitempty"`
	AccessMode string `json:"accessMode"`
}

// Stage is a NodeStage that was not undone.
type Stage struct {
	Path     string `json:"path"`
	Device   string `json:"device,omitempty"`
	ReadOnly bool   `json:"readOnly,omitempty"`
}

// Publish is a NodePublish that was not undone.
type Publish struct {
	AccessMode string `json:"accessMode"`
	ReadOnly   bool   `json:"readOnly,omitempty"`
}

// InUse returns a node that uses the volume, or "".
func (v Volume) InUse() string {
	for node := range v.Attachments {
		return node
	}
	for node := range v.Stages {
		return node
	}
	return ""
}

// Snapshot is a full copy of a volume's content at one time.
type Snapshot struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	Volume    string    `json:"volume"`
	Bytes     int64     `json:"bytes"`
	Backing   Backing   `json:"backing"`
	Node      string    `json:"node,omitempty"`
	Formatted bool      `json:"formatted,omitempty"`
	Created   time.Time `json:"created"`
	Ready     bool      `json:"ready"`
}

// Node is a node on which a node plugin has run.
type Node struct {
	ID         string `json:"id"`
	MaxVolumes int64  `json:"maxVolumes,omitempty"`
}
