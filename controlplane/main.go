// Command packetwalk-controlplane is Kubernetes' control plane as one program: etcd, kube-apiserver, kube-controller-manager,
// kube-scheduler, cloud-controller-manager with Azure's provider, kube-proxy, kubectl and CoreDNS, unmodified upstream, chosen by the name it
// was called by or else by its first argument.
//
// One program because the components share most of their code: one link and one file on disk instead of eight.
// It is a module of its own so that nothing else in packetwalk depends on k8s.io/kubernetes; it must not import packetwalk.dev packages.
package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	_ "time/tzdata" // CronJob time zones, in the API server's validation and in the controller manager

	"go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // kubectl's credential plugins
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client-go's metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // kubernetes_build_info
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

// programs are the components by name. Each runs with os.Args set as if it were a program of its own and does not return except by its exit
// code.
var programs = map[string]func() int{
	"cloud-controller-manager": runCloudController,
	"coredns":                  runCoreDNS,
	"etcd":                     runEtcd,
	"kube-apiserver":           func() int { return cli.Run(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager":  func() int { return cli.Run(controllermanager.NewControllerManagerCommand()) },
	"kube-proxy":               func() int { return cli.Run(proxy.NewProxyCommand()) },
	"kube-scheduler":           func() int { return cli.Run(scheduler.NewSchedulerCommand()) },
	"kubectl":                  runKubectl,
}

func main() {
	name, args, ok := choose(os.Args)
	if !ok {
		fmt.Fprintf(os.Stderr, "usage: %s COMPONENT [ARGUMENT...]\ncomponents: %s\n", filepath.Base(os.Args[0]),
			strings.Join(slices.Sorted(maps.Keys(programs)), ", "))
		os.Exit(2)
	}
	os.Args = args
	os.Exit(programs[name]())
}

// choose finds the component that argv asks for and the argument vector that the component shall see:
// the base name of argv[0] wins (a symbolic link named as the component), then the first argument.
func choose(argv []string) (name string, args []string, ok bool) {
	if len(argv) == 0 {
		return "", nil, false
	}
	if name := filepath.Base(argv[0]); programs[name] != nil {
		return name, argv, true
	}
	if len(argv) < 2 || programs[argv[1]] == nil {
		return "", nil, false
	}
	return argv[1], argv[1:], true
}

// runEtcd runs etcd's own main, which exits the process when it fails.
func runEtcd() int {
	etcdmain.Main(os.Args)
	return 0
}

// runKubectl does what upstream's cmd/kubectl does: verbosity first, because building the command (plugins, kuberc) logs already.
func runKubectl() int {
	_, _ = logs.GlogSetter(kubectl.GetLogVerbosity(os.Args))
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err) // prints the error and exits with its code
	}
	return 0
}
