package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// AttachLoop returns the loop device of an image file. All nodes of the lab share one kernel, so an
// existing device of the image is reused: two devices of one file would not see each other's
// writes.
func AttachLoop(image string) (string, error) {
	if device, err := FindLoop(image); err != nil || device != "" {
		return device, err
	}
	file, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		return "", fmt.Errorf("open image: %w", err)
	}
	defer file.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return "", fmt.Errorf("open loop control: %w", err)
	}
	defer control.Close()

	for {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return "", fmt.Errorf("find a free loop device: %w", err)
		}
		device := "/dev/loop" + strconv.Itoa(number)
		err = configureLoop(device, file, image)
		if errors.Is(err, unix.EBUSY) {
			continue // another process has used this one between the two calls
		}
		if err != nil {
			return "", fmt.Errorf("set up %s for %s: %w", device, image, err)
		}
		return device, nil
	}
}

func configureLoop(device string, image *os.File, name string) error {
	loop, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer loop.Close()
	config := unix.LoopConfig{Fd: uint32(image.Fd())}
	copy(config.Info.File_name[:len(config.Info.File_name)-1], name)
	return unix.IoctlLoopConfigure(int(loop.Fd()), &config)
}

// FindLoop returns the loop device of the image, or "". It compares inodes, because paths differ
// between containers.
func FindLoop(image string) (string, error) {
	var wanted unix.Stat_t
	if err := unix.Stat(image, &wanted); err != nil {
		return "", fmt.Errorf("find image %s: %w", image, err)
	}
	attached, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return "", err
	}
	for _, path := range attached {
		device := "/dev/" + strings.Split(path, "/")[3]
		info, err := loopStatus(device)
		if err != nil {
			continue // detached in the meantime
		}
		if info.Inode == wanted.Ino && info.Device == wanted.Dev {
			return device, nil
		}
	}
	return "", nil
}

func loopStatus(device string) (*unix.LoopInfo64, error) {
	loop, err := os.Open(device)
	if err != nil {
		return nil, err
	}
	defer loop.Close()
	return unix.IoctlLoopGetStatus64(int(loop.Fd()))
}

// GrowLoop sets the size of a device to that of its image file.
func GrowLoop(device string) error {
	return withDevice(device, unix.LOOP_SET_CAPACITY)
}

// DetachLoop detaches the device of an image, if there is one. While it is open, the kernel defers
// that to the last close.
func DetachLoop(image string) error {
	device, err := FindLoop(image)
	if err != nil || device == "" {
		return err
	}
	if err := withDevice(device, unix.LOOP_CLR_FD); err != nil && !errors.Is(err, unix.ENXIO) {
		return err
	}
	return nil
}

func withDevice(device string, request uint) error {
	loop, err := os.Open(device)
	if err != nil {
		return fmt.Errorf("open %s: %w", device, err)
	}
	defer loop.Close()
	if err := unix.IoctlSetInt(int(loop.Fd()), request, 0); err != nil {
		return fmt.Errorf("ioctl on %s: %w", device, err)
	}
	return nil
}
