package cni

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"packetwalk.dev/internal/base/sysctl"
)

// Versions returns the versions of the CNI specification that the plugin speaks.
func Versions() version.PluginInfo {
	return version.PluginSupports("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
}

// Funcs returns the plugin's commands for skel. Results go to out. Errors are the specification's (*types.Error). They must run in the
// node's network namespace.
func Funcs(out io.Writer) skel.CNIFuncs {
	in := func(f func(*session, *skel.CmdArgs) error) func(*skel.CmdArgs) error {
		return func(args *skel.CmdArgs) error {
			s, err := open(args)
			if err != nil {
				return cniError(err)
			}
			defer s.close()
			return cniError(f(s, args))
		}
	}
	return skel.CNIFuncs{
		Add: in(func(s *session, args *skel.CmdArgs) error { return s.cmdAdd(args, out) }),
		Del: in((*session).cmdDel), Check: in((*session).cmdCheck), GC: in((*session).cmdGC), Status: in((*session).cmdStatus),
	}
}

// podArgs are the CNI_ARGS that Kubernetes' runtimes give.
type podArgs struct {
	types.CommonArgs
	K8S_POD_NAMESPACE          types.UnmarshallableString //nolint:staticcheck // the key is the field's name
	K8S_POD_NAME               types.UnmarshallableString //nolint:staticcheck
	K8S_POD_INFRA_CONTAINER_ID types.UnmarshallableString //nolint:staticcheck
	K8S_POD_UID                types.UnmarshallableString //nolint:staticcheck
}

// attachment returns the attachment that the arguments are about, without an address.
func (s *session) attachment(args *skel.CmdArgs) (attachment, error) {
	var pod podArgs
	if err := types.LoadArgs(args.Args, &pod); err != nil {
		return attachment{}, coded(types.ErrInvalidEnvironmentVariables, fmt.Errorf("parse CNI_ARGS: %w", err))
	}
	a := attachment{
		ContainerID: args.ContainerID, IfName: args.IfName, Netns: args.Netns,
		PodNamespace: string(pod.K8S_POD_NAMESPACE), PodName: string(pod.K8S_POD_NAME),
	}
	a.HostIf = hostIfName(s.conf.Mode, hostIfKey(s.conf.Mode, s.conf.Name, a.ContainerID, a.IfName, a.PodNamespace, a.PodName))
	a.MAC = podMAC(a.HostIf).String()
	return a, nil
}

// cmdAdd does the command ADD. It refuses whatever can be refused before it makes anything.
func (s *session) cmdAdd(args *skel.CmdArgs, out io.Writer) error {
	a, err := s.attachment(args)
	if err != nil {
		return err
	}
	pod, podHandle, err := openPod(args.Netns)
	if err != nil {
		return err
	}
	defer pod.Close()
	defer podHandle.Close()
	release, err := s.hold(a.HostIf, lockLimit)
	if err != nil {
		return err
	}
	defer release()
	// What an ADD left that was killed.
	if err := s.removeAttachments(&a, false, func(old *attachment) bool { return old.Pending }); err != nil {
		return err
	}
	if err := s.checkAttachment(&a, podHandle); err != nil {
		return err
	}
	if err := s.reserve(&a); err != nil {
		return err
	}
	return s.attach(&a, pod, podHandle, out)
}

// checkAttachment returns why the attachment is impossible, or nil.
func (s *session) checkAttachment(a *attachment, pod *netlink.Handle) error {
	if old := s.find(a.ContainerID, a.IfName, ""); old != nil {
		return coded(codeExists, fmt.Errorf("add %s to container %s: it is there since an earlier ADD, with address %s; DEL it first", a.IfName,
			a.ContainerID, old.Address))
	}
	there, err := link(pod, a.IfName)
	if err != nil {
		return err
	}
	if there != nil {
		return coded(codeExists, fmt.Errorf("add %s to %s: an interface of that name is there already", a.IfName, a.Netns))
	}
	host, err := link(s.node.Handle, a.HostIf)
	if err != nil {
		return err
	}
	if host != nil {
		return coded(codeExists, fmt.Errorf("make %s for %s: an interface of that name is there already; DEL the container that it belongs to",
			a.HostIf, a.owner()))
	}
	// In transparent mode a pod's new sandbox takes over the name that its old one had: the old link is gone, only its record is left.
	return s.removeAttachments(a, true, func(old *attachment) bool { return old.HostIf == a.HostIf })
}

// reserve chooses the address and notes the attachment. Where there is no address it first takes back those of attachments whose link is
// gone: their pods died without a DEL.
func (s *session) reserve(a *attachment) error {
	full := false
	choose := func() error {
		nodes, err := s.nodeAddrs()
		if err != nil {
			return err
		}
		addr, ok := pick(s.conf.Pool, &s.state, nodes)
		if full = !ok; full {
			return exhausted(s.conf, &s.state)
		}
		a.Address, a.Pending = addr, true
		s.add(*a)
		return nil
	}
	err := s.change(choose)
	if !full {
		return err
	}
	if err := s.removeAttachments(a, true, func(old *attachment) bool { return !s.alive(old) }); err != nil {
		return err
	}
	return s.change(choose)
}

// attach makes the node's part of the network if needed, then the attachment, and prints the result. On any error all of it is taken back.
func (s *session) attach(a *attachment, pod *os.File, podHandle *netlink.Handle, out io.Writer) (err error) {
	var made, attached undo
	defer func() {
		if err != nil {
			err = joined([]error{err, attached.run(), s.undoAttachment(a, made)})
		}
	}()
	if made, err = s.ensureNode(); err != nil {
		return err
	}
	if s.conf.ResetSettings {
		if err := ns.WithNetNSPath(a.Netns, func(ns.NetNS) error { return sysctl.Reset() }); err != nil {
			return err
		}
	}
	if err := s.net.Attach(a, pod); err != nil {
		return err
	}
	attached.add(func() error { return s.net.Detach(a) })
	if err := configurePod(podHandle, a.IfName, s.net.PodWants(a)); err != nil {
		return err
	}
	result, err := s.result(a)
	if err != nil {
		return err
	}
	versioned, err := result.GetAsVersion(s.conf.CNIVersion)
	if err != nil {
		return fmt.Errorf("convert the result to version %s: %w", s.conf.CNIVersion, err)
	}
	err = s.change(func() error {
		known := s.find(a.ContainerID, a.IfName, a.HostIf)
		if known == nil {
			return fmt.Errorf("note the attachment %s: the state no longer has it", a.HostIf)
		}
		known.Pending = false
		return nil
	})
	if err != nil {
		return err
	}
	return versioned.PrintTo(out)
}

// nodeAddrs returns the node's own addresses, which no pod may get.
func (s *session) nodeAddrs() ([]netip.Addr, error) {
	list, err := dump(func() ([]netlink.Addr, error) { return s.node.AddrList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return nil, fmt.Errorf("list the node's addresses: %w", err)
	}
	var out []netip.Addr
	for _, a := range list {
		if ip, ok := netip.AddrFromSlice(a.IP.To4()); ok {
			out = append(out, ip)
		}
	}
	return out, nil
}

// result returns the ADD's result, joined to that of the plugin before this one, if there was one.
func (s *session) result(a *attachment) (*current.Result, error) {
	ifs, err := s.net.Interfaces(a)
	if err != nil {
		return nil, err
	}
	r := s.conf.PrevResult
	if r == nil {
		r = &current.Result{}
	}
	r.CNIVersion = current.ImplementedSpecVersion
	for _, i := range ifs {
		r.Interfaces = append(r.Interfaces, &current.Interface{Name: i.Name, Mac: i.MAC})
	}
	r.Interfaces = append(r.Interfaces, &current.Interface{Name: a.IfName, Mac: a.MAC, Sandbox: a.Netns})
	want := s.net.PodWants(a)
	ip := &current.IPConfig{Interface: current.Int(len(r.Interfaces) - 1), Address: *ipNet(want.Address)}
	for _, route := range want.Routes {
		out := &types.Route{Dst: *ipNet(route.Dst)}
		if route.Gateway.IsValid() {
			out.GW = net.IP(route.Gateway.AsSlice())
			ip.Gateway = out.GW
		}
		r.Routes = append(r.Routes, out)
	}
	r.IPs = append(r.IPs, ip)
	if r.DNS.IsEmpty() {
		r.DNS = s.conf.DNS
	}
	return r, nil
}

// cmdDel does the command DEL. An attachment that does not exist, or no longer does, is no error.
func (s *session) cmdDel(args *skel.CmdArgs) error {
	a, err := s.attachment(args)
	if err != nil {
		return err
	}
	release, err := s.hold(a.HostIf, lockLimit)
	if err != nil {
		return err
	}
	defer release()
	if err := s.removeAttachments(&a, true, func(known *attachment) bool { return known.is(a.ContainerID, a.IfName, a.HostIf) }); err != nil {
		return err
	}
	if left := s.find(a.ContainerID, a.IfName, a.HostIf); left != nil {
		return coded(types.ErrTryAgainLater, fmt.Errorf("delete %s: %w", left.HostIf, errLocked))
	}
	return nil
}

// cmdGC does the command GC: it removes everything that is not among the valid attachments. Rebuilt attachments, whose container is
// unknown, stay when one of the valid ones names their interface. They also stay as long as their link exists and their name does not tell.
// cmdGC leaves to another command what that is at work on.
func (s *session) cmdGC(*skel.CmdArgs) error {
	valid := map[string]bool{}
	for _, v := range s.conf.ValidAttachments {
		valid[v.ContainerID+"/"+v.IfName] = true
		valid[hostIfName(s.conf.Mode, hostIfKey(s.conf.Mode, s.conf.Name, v.ContainerID, v.IfName, "", ""))] = true
	}
	return s.removeAttachments(nil, true, func(a *attachment) bool {
		if a.ContainerID == "" {
			return !valid[a.HostIf] && (s.conf.Mode != modeTransparent || !s.alive(a))
		}
		return a.Pending || !valid[a.ContainerID+"/"+a.IfName]
	})
}

// cmdCheck does the command CHECK: it names every difference from what ADD made.
func (s *session) cmdCheck(args *skel.CmdArgs) error {
	if err := s.refresh(); err != nil {
		return err
	}
	want, err := s.attachment(args)
	if err != nil {
		return err
	}
	if s.conf.PrevResult == nil {
		return coded(types.ErrInvalidNetworkConfig, fmt.Errorf("check %s: prevResult is missing from the configuration; give the ADD's result",
			args.IfName))
	}
	a := s.find(want.ContainerID, want.IfName, want.HostIf)
	if a == nil || a.Pending {
		return coded(types.ErrUnknownContainer, fmt.Errorf("check %s of container %s: network %s has no such attachment", args.IfName,
			args.ContainerID, s.conf.Name))
	}
	bad := s.checkPrevResult(a)
	bad = append(bad, s.net.Check(a)...)
	bad = append(bad, checkPod(args.Netns, a, s.net.PodWants(a))...)
	return wrap(fmt.Sprintf("check %s of container %s", args.IfName, args.ContainerID), joined(bad))
}

// checkPrevResult compares the ADD's result with the attachment.
func (s *session) checkPrevResult(a *attachment) []error {
	var bad []error
	r := s.conf.PrevResult
	want := s.net.PodWants(a).Address
	if !slices.ContainsFunc(r.IPs, func(ip *current.IPConfig) bool { return ip.Address.String() == want.String() }) {
		bad = append(bad, fmt.Errorf("prevResult.ips lacks %s", want))
	}
	for _, name := range []string{a.HostIf, a.IfName} {
		if !slices.ContainsFunc(r.Interfaces, func(i *current.Interface) bool { return i.Name == name }) {
			bad = append(bad, fmt.Errorf("prevResult.interfaces lacks %s", name))
		}
	}
	return bad
}

// cmdStatus does the command STATUS: error 50 when no ADD could succeed (no address, no ebtables), 51 when the existing pods are without
// network too (no master).
func (s *session) cmdStatus(*skel.CmdArgs) error {
	if err := s.refresh(); err != nil {
		return err
	}
	if _, err := s.node.masterLink(); err != nil {
		return err
	}
	if s.intact {
		if err := s.checkNode(); err != nil {
			return coded(types.ErrLimitedConnectivity, err)
		}
	}
	if s.conf.Mode == modeBridge || s.conf.Promiscuous {
		if _, err := findProgram("ebtables-nft-restore", "ebtables-restore"); err != nil {
			return coded(types.ErrPluginNotAvailable, err)
		}
	}
	s.Attachments = slices.DeleteFunc(s.Attachments, func(a attachment) bool { return a.Pending || !s.alive(&a) })
	nodes, err := s.nodeAddrs()
	if err != nil {
		return err
	}
	if _, ok := pick(s.conf.Pool, &s.state, nodes); !ok {
		return coded(types.ErrPluginNotAvailable, exhausted(s.conf, &s.state))
	}
	return nil
}

// checkNode looks whether a network that was complete still has its bridge.
func (s *session) checkNode() error {
	if s.conf.Mode == modeTransparent {
		return nil
	}
	br, err := link(s.node.Handle, s.conf.Bridge)
	if err == nil && br == nil {
		err = fmt.Errorf("bridge %s is gone; the next ADD makes it anew", s.conf.Bridge)
	}
	return err
}
