// Command release creates the files of a release in the folder dist: all of them, or with `image`
// only the image.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"storage.liqo.io/sanity-tests/driver"
	"storage.liqo.io/sanity-tests/release"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	made, err := release.Read(ctx)
	if err != nil {
		return err
	}
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	flags.StringVar(&made.ImageName, "name", made.ImageName, "name of the image: repository:tag")
	push := flags.Bool("push", false, "push the image to its registry, as whoever docker login has logged in")
	alone := len(args) > 0 && args[0] == "image"
	if alone {
		args = args[1:]
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unknown argument %q: it must be image, or nothing", flags.Arg(0))
	}
	if slash, colon := strings.LastIndexByte(made.ImageName, '/'), strings.LastIndexByte(made.ImageName, ':'); slash < 1 || colon < slash {
		return fmt.Errorf("%s is no full name of an image: it must be registry/repository:tag", made.ImageName)
	}
	if alone {
		return image(ctx, made, *push)
	}
	built, err := made.Everything(ctx, os.Stdout)
	if err != nil {
		return err
	}
	fmt.Println("all files of the release are in", made.Dist)
	if *push {
		return pushed(release.Push(ctx, made.ImageName, built...), made.ImageName)
	}
	return nil
}

func pushed(err error, name string) error {
	if err == nil {
		fmt.Println("pushed", name)
	}
	return err
}

func image(ctx context.Context, made *release.Release, push bool) error {
	binary, err := driver.CompileReleaseFor(ctx, runtime.GOARCH)
	if err != nil {
		return err
	}
	built, err := made.Image(ctx, runtime.GOARCH, binary)
	if err != nil {
		return err
	}
	fmt.Printf("image %s, %d MiB unpacked: %s\n", made.ImageName, built.Size>>20, built.Archive)
	if push {
		return pushed(release.Push(ctx, made.ImageName, built), made.ImageName)
	}
	fmt.Printf(`Load it into the nodes of a cluster, one of:
  kind load image-archive %[1]s
  sudo k3s ctr images import %[1]s
  sudo ctr -n k8s.io images import %[1]s
  docker load -i %[1]s
`, built.Archive)
	return nil
}
