package controlplane

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"packetwalk.dev/internal/base/supervise"
)

// Component is one process of the control plane.
type Component struct {
	supervise.Process // its first argument is the component's name, for the multi-call program
	// the component that must be ready before this one starts; empty: none. Only for a quick start: what starts too early retries, a second
	// apart
	After   string
	Serving Probe // answers when requests are good to go, which may be before it is ready; zero: it has no address
	Ready   Probe // answers when all of it works; zero: it has no address
}

// Components returns the control plane's processes, each after the one that it needs.
//
// The API server serves (to the lab's admin, from storage) a second before it is ready: upstream's hook that makes the default roles waits
// that long. The controller manager asks /healthz once a second, so one that starts before the roles are there often loses that second; the
// scheduler's lists would be forbidden. Both serve nothing themselves: a port would cost each an RSA key at its start.
func (c Config) Components() []Component {
	etcd := Probe{Socket: c.etcdSocket(), URL: "http://etcd/health"}
	return []Component{
		{Process: c.process(Etcd, c.etcdArgs()), Serving: etcd, Ready: etcd},
		{Process: c.process(APIServer, c.apiServerArgs()), After: Etcd,
			Serving: Probe{URL: c.Server() + "/api/v1/namespaces/default"}, Ready: Probe{URL: c.Server() + "/readyz"}},
		{Process: c.process(ControllerManager, c.controllerManagerArgs()), After: APIServer},
		{Process: c.process(Scheduler, c.schedulerArgs()), After: APIServer},
	}
}

func (c Config) process(name string, flags []string) supervise.Process {
	return supervise.Process{
		Name: name, Path: c.Binary, Args: append([]string{name}, flags...), Env: environment(os.Environ()),
		LogFile: c.LogFile(name), PidFile: filepath.Join(c.Dir, name+".pid"),
	}
}

// environment returns environ with the pace of Go's garbage collection, unless it has one. A control plane allocates most at its start, and
// at Go's own pace a quarter of the API server's time goes into collecting: 4.1 s instead of 3.0, with 340 MB instead of 450.
func environment(environ []string) []string {
	if slices.ContainsFunc(environ, func(variable string) bool { return strings.HasPrefix(variable, "GOGC=") }) {
		return environ
	}
	return append(slices.Clone(environ), "GOGC=200")
}

// etcdQuota is the most that etcd stores, in bytes. Without it that is 2 GB.
const etcdQuota = 512 << 20

// etcdArgs runs one member on unix sockets: nothing but this lab's API server, as the same user, can reach it.
func (c Config) etcdArgs() []string {
	const member = "http://127.0.0.1:2380" // etcd refuses to advertise a socket; nothing listens or connects there
	return []string{
		"--name=lab",
		"--data-dir=" + c.etcdDir(),
		"--listen-client-urls=unix://" + c.etcdSocket(),
		"--listen-peer-urls=unix://" + c.etcdSocket() + ".peer",
		"--advertise-client-urls=http://127.0.0.1:2379",
		"--initial-advertise-peer-urls=" + member,
		"--initial-cluster=lab=" + member,
		"--quota-backend-bytes=" + strconv.Itoa(etcdQuota),
		"--unsafe-no-fsync", // a lab outlives a crash of its processes, not of its machine
		// The only member waits out an election before it leads; upstream's second is a third of the whole start. Milliseconds.
		"--heartbeat-interval=50", "--election-timeout=250",
		"--log-level=warn",
	}
}

func (c Config) apiServerArgs() []string {
	args := []string{
		"--etcd-servers=unix://" + c.etcdSocket(),
		"--bind-address=" + c.Address.String(),
		fmt.Sprintf("--secure-port=%d", Port),
		"--advertise-address=" + c.Address.String(),
		"--tls-cert-file=" + c.pki("apiserver.crt"),
		"--tls-private-key-file=" + c.pki("apiserver.key"),
		"--client-ca-file=" + c.pki("ca.crt"),
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--anonymous-auth=false",
		"--service-cluster-ip-range=" + c.ServiceCIDR.String(),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + c.pki("sa.pub"),
		"--service-account-signing-key-file=" + c.pki("sa.key"),
		"--kubelet-client-certificate=" + c.pki("kubelet-client.crt"),
		"--kubelet-client-key=" + c.pki("kubelet-client.key"),
		"--kubelet-certificate-authority=" + c.pki("ca.crt"),
		"--kubelet-preferred-address-types=InternalIP",
		// Aggregated API servers take who asks from the API server alone, whose certificate an authority of its own has signed
		// (https://kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer/).
		"--requestheader-client-ca-file=" + c.pki("front-proxy-ca.crt"),
		"--requestheader-allowed-names=" + FrontProxyUser.Common,
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + c.pki("front-proxy-client.crt"),
		"--proxy-client-key-file=" + c.pki("front-proxy-client.key"),
		"--allow-privileged=true",
		"--profiling=false",
		// This plugin taints every new node until the node lifecycle controller has seen that it is Ready; pods that are scheduled before wait
		// out the scheduler's back-off, a second or two. The controller taints nodes that are not Ready with and without it.
		"--disable-admission-plugins=TaintNodesByCondition",
		// Pods get user namespaces by a MutatingAdmissionPolicy, which the API server has without these from Kubernetes 1.36 on.
		"--feature-gates=MutatingAdmissionPolicy=true",
		"--runtime-config=admissionregistration.k8s.io/v1beta1=true",
	}
	if c.EgressSocket != "" {
		args = append(args, "--egress-selector-config-file="+c.egressFile())
	}
	return args
}

func (c Config) controllerManagerArgs() []string {
	args := []string{
		"--kubeconfig=" + c.KubeconfigPath(ControllerManagerUser),
		"--leader-elect=false",
		"--secure-port=0",
		"--cluster-name=" + c.ClusterName,
		"--service-account-private-key-file=" + c.pki("sa.key"),
		"--root-ca-file=" + c.pki("ca.crt"),
		"--use-service-account-credentials=true",
		"--service-cluster-ip-range=" + c.ServiceCIDR.String(),
		// Upstream's 20 requests a second hold the start of the controllers back by five seconds (a service account and a token for each), and
		// 600 pods by thirty.
		"--kube-api-qps=1000", "--kube-api-burst=2000",
		"--profiling=false",
	}
	if c.EndpointsBatch > 0 {
		args = append(args, "--endpointslice-updates-batch-period="+c.EndpointsBatch.String())
	}
	if c.PodCIDR.IsValid() {
		args = append(args, "--allocate-node-cidrs=true", "--cluster-cidr="+c.PodCIDR.String())
	}
	return args
}

func (c Config) schedulerArgs() []string {
	return []string{
		"--config=" + c.schedulerFile(),
		"--secure-port=0",
	}
}

// configurationFiles returns the files that flags name.
func configurationFiles(c Config) []file {
	files := []file{{c.schedulerFile(), schedulerConfiguration(c)}}
	if c.EgressSocket != "" {
		files = append(files, file{c.egressFile(), egressConfiguration(c)})
	}
	return files
}

// egressConfiguration sends what the API server dials for users (kubelets, pods and Services: the selection "cluster") through the caller's
// HTTP CONNECT proxy, as managed clusters do with konnectivity. The format is k8s.io/apiserver/pkg/apis/apiserver/v1beta1, types.go.
func egressConfiguration(c Config) []byte {
	return fmt.Appendf(nil, `apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection:
    proxyProtocol: HTTPConnect
    transport:
      uds:
        udsName: %q
`, c.EgressSocket)
}

// schedulerConfiguration returns a file because the scheduler takes client limits by file only (kube-scheduler's deprecated flags lose to
// it).
func schedulerConfiguration(c Config) []byte {
	return fmt.Appendf(nil, `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: false
enableProfiling: false
clientConnection:
  kubeconfig: %q
  qps: 1000
  burst: 2000
`, c.KubeconfigPath(SchedulerUser))
}
