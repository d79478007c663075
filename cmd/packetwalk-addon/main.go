// Command packetwalk-addon is the programs of AKS's addons, by the name that it is called by: nginx-ingress-controller and external-dns of
// HTTP application routing, virtual-kubelet of the virtual node. The lab mounts it into their pods; like the originals they need nothing
// but the API server, and virtual-kubelet Azure's. The main holds flags and exit codes only.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"packetwalk.dev/internal/addons/connector"
	"packetwalk.dev/internal/addons/dns"
	"packetwalk.dev/internal/addons/httprouting"
	"packetwalk.dev/internal/node/kube"
)

// version is set when the program is built: -ldflags "-X main.version=…".
var version = "development"

// programs are what this one can be. Each gets the arguments after its name and runs until ctx ends.
var programs = map[string]func(ctx context.Context, args []string) error{
	"nginx-ingress-controller": ingressController,
	"external-dns":             externalDNS,
	"virtual-kubelet":          virtualKubelet,
}

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50) // small and long-lived, like packetwalk-node
	}
	os.Exit(run(os.Args))
}

func run(args []string) int {
	name := filepath.Base(args[0])
	program, ok := programs[name]
	if !ok && len(args) > 1 { // packetwalk-addon NAME [flags]
		args = args[1:]
		name = args[0]
		program, ok = programs[name]
	}
	if !ok {
		fmt.Fprintln(os.Stderr, "usage: packetwalk-addon nginx-ingress-controller|external-dns|virtual-kubelet [flags]")
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := program(ctx, args[1:])
	var usage usageError
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case errors.As(err, &usage):
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		return 2
	case err != nil:
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		return 1
	}
	return 0
}

// usageError is a fault in the command line.
type usageError struct{ error }

// parse reads flags; an error is one line, printed by the caller.
func parse(f *flag.FlagSet, args []string) error {
	f.SetOutput(io.Discard)
	err := f.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		f.SetOutput(os.Stdout)
		fmt.Printf("Usage: %s [flags]\n", f.Name())
		f.PrintDefaults()
		return err
	}
	if err == nil && f.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q; all settings are flags", f.Arg(0))
	}
	if err != nil {
		return usageError{err}
	}
	return nil
}

// virtualKubelet runs the connector of the virtual node, which has its settings in the environment.
func virtualKubelet(ctx context.Context, args []string) error {
	if err := parse(flag.NewFlagSet("virtual-kubelet", flag.ContinueOnError), args); err != nil {
		return err
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	logger.Info("virtual node", "program", version)
	return connector.Main(ctx, os.Getenv, logger)
}

func ingressController(ctx context.Context, args []string) error {
	o := httprouting.ControllerOptions{AccessLog: os.Stdout, Log: log.New(os.Stderr, "", log.LstdFlags|log.Lmicroseconds)}
	f := flag.NewFlagSet("nginx-ingress-controller", flag.ContinueOnError)
	kubeconfig := f.String("kubeconfig", "", "kubeconfig `file`; without one, the service account of the pod")
	f.StringVar(&o.Table.Class, "ingress-class", "nginx",
		"`name` of the IngressClass, and value of the annotation kubernetes.io/ingress.class")
	f.StringVar(&o.Table.Controller, "controller-class", "k8s.io/ingress-nginx", "spec.controller of the IngressClasses that are this one's")
	f.Func("default-backend-service", "`namespace/name` of the Service that gets what no Ingress takes", serviceName(&o.Table.DefaultBackend))
	f.Func("publish-service", "`namespace/name` of the Service whose address Ingresses get", serviceName(&o.PublishService))
	f.StringVar(&o.HTTP, "http-address", ":80", "`address` to listen on for HTTP")
	f.StringVar(&o.HTTPS, "https-address", ":443", "`address` to listen on for HTTPS")
	f.StringVar(&o.Health, "healthz-address", ":10254",
		"`address` of /healthz, and of /explain?url=URL, which says where a request goes and why")
	if err := parse(f, args); err != nil {
		return err
	}
	var err error
	if o.Config, err = kube.Config("", *kubeconfig, "nginx-ingress-controller/"+version); err != nil {
		return err
	}
	return httprouting.RunController(ctx, o)
}

func serviceName(into *types.NamespacedName) func(string) error {
	return func(s string) error {
		namespace, name, ok := strings.Cut(s, "/")
		if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
			return fmt.Errorf("%q is not namespace/name", s)
		}
		*into = types.NamespacedName{Namespace: namespace, Name: name}
		return nil
	}
}

// externalDNS takes the flags of external-dns that the addon gives it. Source and provider can be nothing else.
func externalDNS(ctx context.Context, args []string) error {
	o := httprouting.ExternalDNSOptions{Log: os.Stderr}
	f := flag.NewFlagSet("external-dns", flag.ContinueOnError)
	kubeconfig := f.String("kubeconfig", "", "kubeconfig `file`; without one, the service account of the pod")
	source := f.String("source", "ingress", "where names come from: ingress")
	provider := f.String("provider", "rfc2136", "how the zone is changed: rfc2136, by DNS updates")
	host := f.String("rfc2136-host", "", "`address` of the name server that takes updates")
	port := f.String("rfc2136-port", "53", "its `port`")
	key := f.String("rfc2136-tsig-keyname", "", "`name` of the key that signs updates and transfers")
	secret := f.String("rfc2136-tsig-secret", os.Getenv("EXTERNAL_DNS_RFC2136_TSIG_SECRET"),
		"its secret, in `base64`; by default $EXTERNAL_DNS_RFC2136_TSIG_SECRET")
	algorithm := f.String("rfc2136-tsig-secret-alg", "hmac-sha256", "its algorithm: hmac-sha256")
	f.Bool("rfc2136-tsig-axfr", true, "sign transfers, too, which is always done")
	f.StringVar(&o.Zone, "domain-filter", "", "the `zone`; names outside it are left out")
	f.DurationVar(&o.Interval, "interval", time.Minute, "how often the zone is compared, also when no Ingress has changed")
	if err := parse(f, args); err != nil {
		return err
	}
	switch {
	case *source != "ingress" || *provider != "rfc2136":
		return usageError{fmt.Errorf("source %s and provider %s: here there are ingress and rfc2136", *source, *provider)}
	case *algorithm != "hmac-sha256":
		return usageError{fmt.Errorf("--rfc2136-tsig-secret-alg %s: here there is hmac-sha256", *algorithm)}
	case o.Zone == "" || *host == "":
		return usageError{errors.New("--domain-filter and --rfc2136-host are needed")}
	case o.Interval <= 0:
		return usageError{fmt.Errorf("--interval %v is not possible; write 1m", o.Interval)}
	}
	o.Server = net.JoinHostPort(*host, *port)
	var err error
	if o.Key, err = dns.NewKey(*key, *secret); err != nil {
		return usageError{fmt.Errorf("--rfc2136-tsig-keyname and --rfc2136-tsig-secret: %w", err)}
	}
	if o.Config, err = kube.Config("", *kubeconfig, "external-dns/"+version); err != nil {
		return err
	}
	return httprouting.RunExternalDNS(ctx, o)
}
