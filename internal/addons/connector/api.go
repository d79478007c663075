package connector

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	vkapi "github.com/virtual-kubelet/virtual-kubelet/node/api"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"packetwalk.dev/internal/azure/aci"
	"packetwalk.dev/internal/base/logs"
	"packetwalk.dev/internal/pods/nodeapi"
)

// api returns the node's side of the interface that the API server asks.
func (c *connector) api() nodeapi.Config {
	return nodeapi.Config{
		Certificate: c.cfg.Certificate, ClientCA: c.cfg.ClientCA, ClientName: nodeapi.APIServerName, Now: time.Now,
		Log: c.log, Exec: c.exec, Attach: c.attach, PortForward: c.portForward, Pods: c.GetPods, Stats: c.stats,
	}
}

// group finds the group of a pod.
func (c *connector) group(namespace, pod string) (string, error) {
	f := c.follower(namespace, pod)
	if f == nil {
		return "", errdefs.NotFoundf("pod %q not found in namespace %q", pod, namespace)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.made { // what has the name is another pod's
		return "", errdefs.NotFoundf("pod %q in namespace %q has no container group", pod, namespace)
	}
	return groupName(namespace, pod), nil
}

func (c *connector) log(namespace, pod, container string, o logs.Options) (func(context.Context, io.Writer) error, error) {
	group, err := c.group(namespace, pod)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, w io.Writer) error { return c.cfg.ACI.Logs(ctx, group, container, o, w) }, nil
}

func (c *connector) exec(ctx context.Context, namespace, pod, container string, cmd []string, client vkapi.AttachIO) error {
	group, err := c.group(namespace, pod)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := nodeapi.StreamsOf(ctx, client)
	e := aci.Exec{Command: cmd, TTY: client.TTY(), Stdin: s.Stdin, Stdout: s.Stdout, Stderr: s.Stderr, Resize: s.Resize}
	return nodeapi.ExitError(c.cfg.ACI.Exec(ctx, group, container, e))
}

// attach shows the container's output: Azure's containers have no standard input to connect to.
func (c *connector) attach(ctx context.Context, namespace, pod, container string, client vkapi.AttachIO) error {
	group, err := c.group(namespace, pod)
	if err != nil || client.Stdout() == nil {
		return err
	}
	return c.cfg.ACI.Logs(ctx, group, container, logs.Options{Follow: true}, client.Stdout())
}

// portForward carries one connection to the group's address. It uses the network, as for any pod, because no outside process can enter the
// group.
func (c *connector) portForward(ctx context.Context, namespace, pod string, port int32, stream io.ReadWriteCloser) error {
	group, err := c.group(namespace, pod)
	if err != nil {
		return err
	}
	g, err := c.cfg.ACI.Get(ctx, group)
	if err != nil {
		return err
	}
	if g.Properties.IPAddress == nil || !g.Properties.IPAddress.IP.IsValid() {
		return fmt.Errorf("container group %s has no address yet", group)
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(g.Properties.IPAddress.IP.String(), strconv.Itoa(int(port))))
	if err != nil {
		return err
	}
	nodeapi.Carry(conn, stream)
	return nil
}

// stats returns the minimum of /stats/summary: who is there. A lab does not measure.
func (c *connector) stats(ctx context.Context) (*statsv1alpha1.Summary, error) {
	sum := &statsv1alpha1.Summary{Node: statsv1alpha1.NodeStats{NodeName: c.cfg.NodeName}, Pods: []statsv1alpha1.PodStats{}}
	pods, err := c.GetPods(ctx)
	for _, p := range pods {
		sum.Pods = append(sum.Pods, statsv1alpha1.PodStats{PodRef: statsv1alpha1.PodReference{Name: p.Name, Namespace: p.Namespace,
			UID: string(p.UID)}})
	}
	return sum, err
}
