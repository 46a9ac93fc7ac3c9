package state

import "time"

// Backing says what a volume's content is made of.
type Backing string

const (
	// Directory is a plain directory, bind-mounted. It has no size of its own.
	Directory Backing = "directory"
	// Ext4 is an image file with an ext4 filesystem, loop-mounted.
	Ext4 Backing = "ext4"
	// XFS is an image file with an xfs filesystem, loop-mounted.
	XFS Backing = "xfs"
	// Raw is an image file without a filesystem, handed out as a loop device.
	Raw Backing = "raw"
)

// IsFilesystemImage tells whether the content is a filesystem inside an image
// file, which only one kernel mount may write to.
func (b Backing) IsFilesystemImage() bool { return b == Ext4 || b == XFS }

// Volume is everything known about one volume. Tests read these files too.
type Volume struct {
	ID      string  `json:"id"`
	Name    string  `json:"name"`
	Claim   string  `json:"claim,omitempty"` // namespace/name, when the provisioner tells
	Bytes   int64   `json:"bytes"`
	Backing Backing `json:"backing"`
	// Node is the only node that reaches the volume; empty means all do.
	Node           string            `json:"node,omitempty"`
	Parameters     map[string]string `json:"parameters,omitempty"`
	Mutable        map[string]string `json:"mutableParameters,omitempty"`
	SourceVolume   string            `json:"sourceVolume,omitempty"`
	SourceSnapshot string            `json:"sourceSnapshot,omitempty"`
	// Ready is false while the content is still being made.
	Ready bool `json:"ready"`
	// Formatted tells whether the image carries its filesystem yet.
	Formatted bool `json:"formatted,omitempty"`
	// Grow asks the next stage to fit the filesystem to the image, because the
	// content was copied from something smaller.
	Grow bool `json:"grow,omitempty"`

	// By node id.
	Attachments map[string]Attachment `json:"attachments,omitempty"`
	Stages      map[string]Stage      `json:"stages,omitempty"`
	// By node id, then target path.
	Publishes map[string]map[string]Publish `json:"publishes,omitempty"`
}

// Attachment is one ControllerPublish that was not taken back.
type Attachment struct {
	// Token travels in the publish context and proves at stage time that the
	// context of this very attachment was handed on.
	Token      string `json:"token"`
	ReadOnly   bool   `json:"readOnly,omitempty"`
	AccessMode string `json:"accessMode"`
}

// Stage is one NodeStage that was not taken back.
type Stage struct {
	Path     string `json:"path"`
	Device   string `json:"device,omitempty"`
	ReadOnly bool   `json:"readOnly,omitempty"`
}

// Publish is one NodePublish that was not taken back.
type Publish struct {
	AccessMode string `json:"accessMode"`
	ReadOnly   bool   `json:"readOnly,omitempty"`
}

// InUse names a node that holds the volume, or nothing.
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

// Node is one node plugin that has run.
type Node struct {
	ID         string `json:"id"`
	MaxVolumes int64  `json:"maxVolumes,omitempty"`
}
