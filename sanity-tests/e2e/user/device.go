package user

import (
	"context"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// countingOnDevice writes one number after the other into the first block of a device, each when
// the one before is on the disk, and goes on where it was stopped.
const countingOnDevice = `i=$(head -c 512 ` + DataPath + ` | tr -dc 0-9)
while true; do i=$((i+1)); printf '%511s\n' $i | dd of=` + DataPath + ` bs=512 count=1 conv=notrunc,fsync 2>/dev/null; sleep 0.1; done`

// CountOnDevice has a pod count in the first block of its volume, which is a device.
func CountOnDevice(pod *corev1.Pod) {
	WithDevice(pod)
	pod.Spec.Containers[0].Command = []string{"sh", "-c", countingOnDevice}
}

// FillDevice writes noise to some MiB of a device of at least 16 MiB, with zeros before, between
// and after them, and returns what DeviceSum is then.
func (n *Namespace) FillDevice(claim, node string) (sum string) {
	n.t.Helper()
	n.Pod("filler", claim, WithDevice, OnNode(node))
	n.WaitReady("filler")
	n.Exec("filler", "test -b "+DataPath)
	n.Exec("filler", "for at in 1 2 5 11; do dd if=/dev/urandom of="+DataPath+" bs=1M count=1 seek=$at conv=notrunc,fsync 2>/dev/null; done")
	sum = n.DeviceSum("filler")
	n.DeletePod("filler")
	return sum
}

// DeviceSum is a checksum of 16 MiB of a pod's device, but for the first.
func (n *Namespace) DeviceSum(pod string) string {
	n.t.Helper()
	return n.Exec(pod, "dd if="+DataPath+" bs=1M skip=1 count=15 2>/dev/null | sha256sum")
}

// DeviceCount waits until a pod has counted, and says how far.
func (n *Namespace) DeviceCount(pod string) int {
	n.t.Helper()
	var number int
	n.Eventually(pod+" has counted", func(context.Context) (string, error) {
		out, err := n.Kubectl("exec", pod, "--", "head", "-c", "511", DataPath)
		if err != nil {
			return "", err
		}
		number, err = strconv.Atoi(strings.TrimSpace(strings.Trim(out, "\x00")))
		if err != nil {
			return "it has not", nil
		}
		return "", nil
	})
	return number
}
