package user

import (
	"context"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// countingOnDevice increments a number in the first block of a device, synced each time, and continues
// after a restart.
const countingOnDevice = `i=$(head -c 512 ` + DataPath + ` | tr -dc 0-9)
while true; do i=$((i+1)); printf '%511s\n' $i | dd of=` + DataPath + ` bs=512 count=1 conv=notrunc,fsync 2>/dev/null; sleep 0.1; done`

// CountOnDevice makes a pod count in the first block of its block volume.
func CountOnDevice(pod *corev1.Pod) {
	WithDevice(pod)
	pod.Spec.Containers[0].Command = []string{"sh", "-c", countingOnDevice}
}

// FillDevice writes random data to some MiB of a device of at least 16 MiB, with zeros before, between
// and after them, and returns DeviceSum.
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

// DeviceSum returns a checksum of MiB 1 to 15 of a pod's device.
func (n *Namespace) DeviceSum(pod string) string {
	n.t.Helper()
	return n.Exec(pod, "dd if="+DataPath+" bs=1M skip=1 count=15 2>/dev/null | sha256sum")
}

// DeviceCount waits until a pod has counted, and returns the number.
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
			return "it has not counted", nil
		}
		return "", nil
	})
	return number
}
