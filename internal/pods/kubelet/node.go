package kubelet

import (
	"context"
	"maps"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"golang.org/x/sys/unix"
)

// nodeIP is the node's first internal address.
func nodeIP(n *corev1.Node) netip.Addr {
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			ip, _ := netip.ParseAddr(a.Address)
			return ip
		}
	}
	return netip.Addr{}
}

// completeNode gives the Node object what every node has and the template does not say.
func completeNode(template *corev1.Node, port int, now metav1.Time) *corev1.Node {
	n := template.DeepCopy()
	labels := map[string]string{
		corev1.LabelHostname: n.Name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: runtime.GOARCH,
		"beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": runtime.GOARCH,
	}
	maps.Copy(labels, n.Labels)
	n.Labels = labels
	st := &n.Status
	if !hasAddress(st.Addresses, corev1.NodeHostName) {
		st.Addresses = append(st.Addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: n.Name})
	}
	st.DaemonEndpoints.KubeletEndpoint.Port = int32(port)
	st.Capacity = resources(st.Capacity)
	if st.Allocatable == nil {
		st.Allocatable = st.Capacity.DeepCopy()
	}
	nodeInfo(&st.NodeInfo, n)
	st.Conditions = nodeConditions(now)
	return n
}

func hasAddress(list []corev1.NodeAddress, t corev1.NodeAddressType) bool {
	return slices.ContainsFunc(list, func(a corev1.NodeAddress) bool { return a.Type == t })
}

func resources(given corev1.ResourceList) corev1.ResourceList {
	list := corev1.ResourceList{
		corev1.ResourceCPU: *resource.NewQuantity(int64(runtime.NumCPU()), resource.DecimalSI), corev1.ResourcePods: resource.MustParse("110"),
		corev1.ResourceEphemeralStorage: resource.MustParse("128Gi"),
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		list[corev1.ResourceMemory] = *resource.NewQuantity(int64(info.Totalram)*int64(info.Unit), resource.BinarySI)
	}
	maps.Copy(list, given)
	return list
}

func nodeInfo(i *corev1.NodeSystemInfo, n *corev1.Node) {
	set := func(field *string, value string) {
		if *field == "" {
			*field = value
		}
	}
	file := func(path string) string {
		b, _ := os.ReadFile(path)
		return strings.TrimSpace(string(b))
	}
	set(&i.KubeletVersion, "v1.35.4")
	set(&i.OperatingSystem, "linux")
	set(&i.Architecture, runtime.GOARCH)
	set(&i.KernelVersion, file("/proc/sys/kernel/osrelease"))
	set(&i.BootID, file("/proc/sys/kernel/random/boot_id"))
	set(&i.OSImage, "packetwalk lab")
	set(&i.ContainerRuntimeVersion, "packetwalk://1")
	set(&i.MachineID, n.Name)
	set(&i.SystemUUID, n.Name)
}

// nodeConditions are a healthy node's, in upstream's words. A lab's node has no pressure of its own to report: memory, disk and process
// numbers are the machine's.
func nodeConditions(now metav1.Time) []corev1.NodeCondition {
	c := func(t corev1.NodeConditionType, s corev1.ConditionStatus, reason, message string) corev1.NodeCondition {
		return corev1.NodeCondition{Type: t, Status: s, Reason: reason, Message: message, LastHeartbeatTime: now, LastTransitionTime: now}
	}
	return []corev1.NodeCondition{
		c(corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
		c(corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
		c(corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
		c(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady", "kubelet is posting ready status"),
	}
}

// nodeProvider answers the node controller: the node is well as long as the kubelet runs.
type nodeProvider struct {
	telling sync.Mutex // one after the other
	mu      sync.Mutex
	node    *corev1.Node
	cb      func(*corev1.Node)
}

func (p *nodeProvider) Ping(ctx context.Context) error { return ctx.Err() }

func (p *nodeProvider) NotifyNodeStatus(_ context.Context, cb func(*corev1.Node)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cb = cb
}

// imagesPeriod is how often the images of a node's status are looked at (pkg/kubelet/apis/config, nodeStatusUpdateFrequency).
const imagesPeriod = 10 * time.Second

// followImages keeps the images of the node's status what they are until ctx ends.
func (k *Kubelet) followImages(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-k.cfg.Clock.After(imagesPeriod):
			k.provider.images(k.cfg.Images())
		}
	}
}

// images has the status written where the images are others.
func (p *nodeProvider) images(list []corev1.ContainerImage) {
	p.mu.Lock()
	changed := !equality.Semantic.DeepEqual(p.node.Status.Images, list)
	if changed {
		p.node = p.node.DeepCopy()
		p.node.Status.Images = list
	}
	p.mu.Unlock()
	if changed {
		p.again()
	}
}

// again makes the controller write the node's status soon. It does not wait for that: the controller takes one at a time, each as it is
// then.
func (p *nodeProvider) again() {
	go func() {
		p.telling.Lock()
		defer p.telling.Unlock()
		p.mu.Lock()
		cb, node := p.cb, p.node.DeepCopy()
		p.mu.Unlock()
		if cb != nil {
			cb(node)
		}
	}()
}
