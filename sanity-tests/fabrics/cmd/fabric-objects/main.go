// Command fabric-objects creates the objects of a fabric (Liqo or Kosmos) in a cluster, for tests of
// programs that read them. Without arguments it lists its verbs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime/pkg/log"
)

// verb is a subcommand.
type verb struct {
	fabric, name string
	arguments    string // after the flags; empty for none
	summary      string
	flags        func(*flag.FlagSet) action
}

// action runs in the cluster of a kubeconfig file, with the arguments after the flags.
type action func(ctx context.Context, kubeconfig string, arguments []string) error

var verbs = slices.Concat(liqoVerbs, kosmosVerbs)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctrl.SetLogger(logr.Discard()) // controller-runtime warns if it has none
	err := run(ctx, os.Args[1:], os.Stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "fabric-objects:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, arguments []string, out io.Writer) error {
	var kubeconfig string
	timeout := 2 * time.Minute
	addCommonFlags := func(flags *flag.FlagSet) *flag.FlagSet {
		flags.SetOutput(io.Discard)
		flags.StringVar(&kubeconfig, "kubeconfig", kubeconfig, "`FILE` of the cluster in which to create or delete objects")
		flags.DurationVar(&timeout, "timeout", timeout, "give up after")
		return flags
	}
	global := addCommonFlags(flag.NewFlagSet("fabric-objects", flag.ContinueOnError))
	if err := global.Parse(arguments); err != nil {
		usage(out, global)
		return err
	}
	if global.NArg() < 2 {
		usage(out, global)
		return errors.New("a fabric and a verb are required")
	}
	chosen, err := find(global.Arg(0), global.Arg(1))
	if err != nil {
		return err
	}
	flags := addCommonFlags(flag.NewFlagSet(chosen.fabric+" "+chosen.name, flag.ContinueOnError))
	do := chosen.flags(flags)
	if err := flags.Parse(global.Args()[2:]); err != nil {
		describe(out, chosen, flags)
		return err
	}
	switch {
	case kubeconfig == "":
		return errors.New("--kubeconfig is missing: the cluster in which to create or delete objects")
	case chosen.arguments == "" && flags.NArg() > 0:
		return fmt.Errorf("%s %s takes no %q (flags come first)", chosen.fabric, chosen.name, flags.Arg(0))
	case chosen.arguments != "" && flags.NArg() == 0:
		return fmt.Errorf("%s %s needs %s", chosen.fabric, chosen.name, chosen.arguments)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := do(ctx, kubeconfig, flags.Args()); err != nil {
		return fmt.Errorf("%s %s: %w", chosen.fabric, chosen.name, err)
	}
	return nil
}

func find(fabric, name string) (verb, error) {
	var known []string
	for _, v := range verbs {
		if v.fabric == fabric && v.name == name {
			return v, nil
		}
		known = append(known, v.fabric+" "+v.name)
	}
	return verb{}, fmt.Errorf("%s %s is unknown; known are: %s", fabric, name, strings.Join(known, ", "))
}

func usage(out io.Writer, global *flag.FlagSet) {
	fmt.Fprintln(out, "usage: fabric-objects --kubeconfig FILE FABRIC VERB [flags] [arguments]; VERB --help lists its flags")
	for _, v := range verbs {
		fmt.Fprintf(out, "  %-20s %s\n", v.fabric+" "+v.name, v.summary)
	}
	global.SetOutput(out)
	global.PrintDefaults()
}

func describe(out io.Writer, v verb, flags *flag.FlagSet) {
	fmt.Fprintf(out, "usage: fabric-objects %s %s [flags] %s\n%s\n", v.fabric, v.name, v.arguments, v.summary)
	flags.SetOutput(out)
	flags.PrintDefaults()
}

// required returns an error for the first flag without a value.
func required(values map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if values[name] == "" {
			return fmt.Errorf("--%s is missing", name)
		}
	}
	return nil
}

// list is a flag that may be given several times.
type list []string

func (l *list) String() string { return strings.Join(*l, ",") }

// Set appends a value.
func (l *list) Set(value string) error {
	*l = append(*l, value)
	return nil
}
