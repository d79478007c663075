package simulated

import (
	"context"
	"maps"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"

	vknode "github.com/virtual-kubelet/virtual-kubelet/node"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"packetwalk.dev/internal/base/pause"
	"packetwalk.dev/internal/base/sysctl"
)

// kubeletPort is where the API server asks a node.
const kubeletPort = 10250

// address returns the node's first internal address; invalid where it has none.
func address(n *corev1.Node) netip.Addr {
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			ip, _ := netip.ParseAddr(a.Address)
			return ip
		}
	}
	return netip.Addr{}
}

// complete gives the object what every node has. Of the machine it has the processors, the memory and the kernel.
func complete(given *corev1.Node, now time.Time) *corev1.Node {
	n := given.DeepCopy()
	labels := map[string]string{corev1.LabelHostname: n.Name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: runtime.GOARCH}
	maps.Copy(labels, n.Labels)
	n.Labels = labels
	kernel, _ := sysctl.Read("kernel/osrelease") // left empty if hidden
	boot, _ := sysctl.Read("kernel/random/boot_id")
	st := &n.Status
	st.DaemonEndpoints.KubeletEndpoint.Port = kubeletPort
	st.Capacity = capacity(st.Capacity)
	st.Allocatable = st.Capacity.DeepCopy()
	st.NodeInfo = corev1.NodeSystemInfo{
		KubeletVersion: st.NodeInfo.KubeletVersion, OperatingSystem: "linux", Architecture: runtime.GOARCH,
		OSImage:                 "packetwalk simulated node",
		ContainerRuntimeVersion: "simulated://1", KernelVersion: kernel, BootID: boot,
		MachineID: n.Name, SystemUUID: n.Name,
	}
	st.Conditions = conditions(metav1.NewTime(now))
	return n
}

// capacity returns the machine's, where the node has no other: many nodes share it.
func capacity(given corev1.ResourceList) corev1.ResourceList {
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

// conditions returns a healthy node's, in upstream's words: the machine's memory and disk are not this node's alone.
func conditions(now metav1.Time) []corev1.NodeCondition {
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

// register keeps the Node object and its lease until ctx ends. It tries again after an error, because at the start of many nodes the API
// server is late.
func (n *node) register(ctx context.Context) error {
	pauses := wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 1, Steps: 5, Cap: 15 * time.Second}
	for {
		err := n.keepNode(ctx)
		if ctx.Err() == nil {
			n.log.Warn("the node does not register", "err", err)
		}
		if !pause.For(ctx, pauses.Step()) {
			return ctx.Err()
		}
	}
}

// keepNode creates the Node object, if it does not exist, and keeps it and its lease. A Node that is deleted is created again.
func (n *node) keepNode(ctx context.Context) error {
	nodes := n.client.CoreV1().Nodes()
	object := complete(n.Node, time.Now())
	create := func(ctx context.Context) error {
		_, err := nodes.Create(ctx, object.DeepCopy(), metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	}
	if err := create(ctx); err != nil {
		return err
	}
	controller, err := vknode.NewNodeController(vknode.NaiveNodeProvider{}, object, nodes,
		vknode.WithNodeEnableLeaseV1(n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease), vknode.DefaultLeaseDuration),
		vknode.WithNodeStatusUpdateErrorHandler(func(ctx context.Context, err error) error {
			if apierrors.IsNotFound(err) {
				return create(ctx)
			}
			return err
		}))
	if err != nil {
		return err
	}
	return controller.Run(ctx)
}
