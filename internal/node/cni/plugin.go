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
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Versions are the versions of the CNI specification that the plugin speaks.
func Versions() version.PluginInfo {
	return version.PluginSupports("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
}

// Funcs are the plugin's commands for skel. Results go to out. Errors are the specification's (*types.Error). They must run in the node's network namespace.
func Funcs(out io.Writer) skel.CNIFuncs {
	wrapped := func(f func(*skel.CmdArgs) error) func(*skel.CmdArgs) error {
		return func(args *skel.CmdArgs) error { return cniError(f(args)) }
	}
	return skel.CNIFuncs{
		Add:    wrapped(func(args *skel.CmdArgs) error { return add(args, out) }),
		Del:    wrapped(del),
		Check:  wrapped(check),
		GC:     wrapped(gc),
		Status: wrapped(status),
	}
}

// session is one command at work: configuration, state under lock, and the network.
type session struct {
	*store
	conf  *Config
	node  *Node
	net   Network
	stamp string // the namespace's incarnation now
	// intact: the state says that the node's part of the network is complete in this namespace.
	intact bool
}

// open parses the configuration, takes the lock and brings the state up to what the kernel has.
func open(args *skel.CmdArgs, exclusive bool) (*session, error) {
	conf, err := ParseConfig(args.StdinData, os.ReadFile)
	if err != nil {
		return nil, err
	}
	st, err := openStore(conf.StateDir, conf.Name, exclusive)
	if err != nil {
		return nil, err
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		st.close()
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	s := &session{store: st, conf: conf}
	s.node = &Node{Handle: h, Config: conf, ebtables: ebtables{lock: st.lock}}
	s.net = kinds[conf.Mode](s.node)
	if err := s.reconcile(); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *session) close() {
	s.node.Close()
	s.store.close()
}

// reconcile fits the state to the namespace. A state of another incarnation (the node started anew) keeps only the attachments whose link is there, which after a
// reboot is none: their addresses are free again, because no interface can have them. Where the state is lost or another's, attachments are rebuilt from the kernel.
func (s *session) reconcile() error {
	var err error
	if s.stamp, err = incarnation(); err != nil {
		return err
	}
	if s.found && s.Incarnation == s.stamp {
		s.intact = s.NodeReady
		return nil
	}
	s.Attachments = slices.DeleteFunc(s.Attachments, func(a Attachment) bool { return !s.alive(&a) })
	rebuilt, err := s.net.Recover()
	if err != nil {
		return err
	}
	for _, a := range rebuilt {
		known := func(x Attachment) bool { return x.HostIf == a.HostIf || x.Address == a.Address }
		if inPool(s.conf.Pool, a.Address) && !slices.ContainsFunc(s.Attachments, known) {
			s.add(a)
		}
	}
	s.Incarnation, s.NodeReady, s.Released = s.stamp, false, nil
	return nil
}

// alive: the node's end of the veth is there. It goes when either end's namespace goes.
func (s *session) alive(a *Attachment) bool {
	l, err := link(s.node.Handle, a.HostIf)
	return err != nil || l != nil
}

// podArgs are the CNI_ARGS that Kubernetes' runtimes give.
type podArgs struct {
	types.CommonArgs
	K8S_POD_NAMESPACE          types.UnmarshallableString //nolint:revive // the key is the field's name
	K8S_POD_NAME               types.UnmarshallableString //nolint:revive
	K8S_POD_INFRA_CONTAINER_ID types.UnmarshallableString //nolint:revive
	K8S_POD_UID                types.UnmarshallableString //nolint:revive
}

// attachment is the attachment that the arguments are about, without an address.
func (s *session) attachment(args *skel.CmdArgs) (Attachment, error) {
	var pod podArgs
	if err := types.LoadArgs(args.Args, &pod); err != nil {
		return Attachment{}, coded(types.ErrInvalidEnvironmentVariables, fmt.Errorf("parse CNI_ARGS: %w", err))
	}
	a := Attachment{
		ContainerID: args.ContainerID, IfName: args.IfName, Netns: args.Netns,
		PodNamespace: string(pod.K8S_POD_NAMESPACE), PodName: string(pod.K8S_POD_NAME),
	}
	a.HostIf = HostInterface(s.conf.Mode, HostInterfaceKey(s.conf.Mode, s.conf.Name, a.ContainerID, a.IfName, a.PodNamespace, a.PodName))
	a.MAC = podMAC(a.HostIf).String()
	return a, nil
}

// add is the command ADD. Whatever can be refused is refused before anything is made.
func add(args *skel.CmdArgs, out io.Writer) error {
	s, err := open(args, true)
	if err != nil {
		return err
	}
	defer s.close()
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
	if err := s.takeBackPending(); err != nil {
		return err
	}
	if err := s.refuse(&a, podHandle); err != nil {
		return err
	}
	return s.attach(&a, pod, podHandle, out)
}

// takeBackPending removes what an ADD left that was killed: it cannot be running, since it would hold the lock.
func (s *session) takeBackPending() error {
	for _, a := range slices.Clone(s.Attachments) {
		if !a.Pending {
			continue
		}
		if err := s.net.Detach(&a); err != nil {
			return fmt.Errorf("take back what a killed ADD left: %w", err)
		}
		s.forget(a, false)
	}
	return nil
}

// refuse says why this attachment cannot be made.
func (s *session) refuse(a *Attachment, pod *netlink.Handle) error {
	if old := s.find(a.ContainerID, a.IfName, ""); old != nil {
		return coded(codeExists, fmt.Errorf("add %s to container %s: it is there since an earlier ADD, with address %s; DEL it first", a.IfName, a.ContainerID, old.Address))
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
		return coded(codeExists, fmt.Errorf("make %s for %s: an interface of that name is there already; DEL the container that it belongs to", a.HostIf, a.owner()))
	}
	// In transparent mode a pod's new sandbox takes over the name that its old one had: the old link is gone, only its record is left.
	for _, old := range slices.Clone(s.Attachments) {
		if old.HostIf == a.HostIf {
			if err := s.net.Detach(&old); err != nil {
				return err
			}
			s.forget(old, true)
		}
	}
	return nil
}

// attach makes the node's part of the network if needed, then the attachment, and prints the result. On any error all of it is taken back.
func (s *session) attach(a *Attachment, pod *os.File, podHandle *netlink.Handle, out io.Writer) (err error) {
	if err := s.allocate(a); err != nil {
		return err
	}
	made, err := s.net.Ensure(s.intact)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = joined([]error{err, made.run(), s.forgetFailed(a, len(made) > 0)})
		}
	}()
	s.NodeReady, a.Pending = true, true
	s.add(*a)
	if err := s.save(); err != nil {
		return err
	}
	if err := s.net.Attach(a, pod); err != nil {
		return err
	}
	made.add(func() error { return s.net.Detach(a) })
	if err := configurePod(podHandle, a.IfName, s.net.PodWants(a)); err != nil {
		return err
	}
	result, err := s.result(a)
	if err != nil {
		return err
	}
	s.find(a.ContainerID, a.IfName, "").Pending = false
	if err := s.save(); err != nil {
		return err
	}
	versioned, err := result.GetAsVersion(s.conf.CNIVersion)
	if err != nil {
		return fmt.Errorf("convert the result to version %s: %w", s.conf.CNIVersion, err)
	}
	return versioned.PrintTo(out)
}

func (s *session) forgetFailed(a *Attachment, nodeUndone bool) error {
	s.forget(*a, false)
	if nodeUndone {
		s.NodeReady = false
	}
	return s.save()
}

// allocate chooses the address. Where there is none it first takes back those of attachments whose link is gone: their pods died without a DEL.
func (s *session) allocate(a *Attachment) error {
	nodes, err := s.nodeAddrs()
	if err != nil {
		return err
	}
	addr, ok := pick(s.conf.Pool, &s.State, nodes)
	if !ok {
		for _, old := range slices.Clone(s.Attachments) {
			if s.alive(&old) {
				continue
			}
			if err := s.net.Detach(&old); err != nil {
				return err
			}
			s.forget(old, true)
		}
		addr, ok = pick(s.conf.Pool, &s.State, nodes)
	}
	if !ok {
		return exhausted(s.conf, &s.State)
	}
	a.Address = addr
	return nil
}

// nodeAddrs are the node's own addresses, which no pod may get.
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

// result is the ADD's result, joined to that of the plugin before this one, if there was one.
func (s *session) result(a *Attachment) (*current.Result, error) {
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

// del is the command DEL. What is not there, or not any more, is no error.
func del(args *skel.CmdArgs) error {
	s, err := open(args, true)
	if err != nil {
		return err
	}
	defer s.close()
	a, err := s.attachment(args)
	if err != nil {
		return err
	}
	known := s.find(a.ContainerID, a.IfName, a.HostIf)
	if known == nil {
		return nil
	}
	return s.remove(*known)
}

// remove detaches and forgets. The record goes last: when it fails or is killed before, the next DEL goes on.
func (s *session) remove(a Attachment) error {
	if err := s.net.Detach(&a); err != nil {
		return err
	}
	s.forget(a, true)
	return s.save()
}

// gc is the command GC: everything goes that is not among the valid attachments. Rebuilt attachments, whose container is not known, stay when one of the valid ones
// names their interface, and in any case as long as their link is there and their name does not tell.
func gc(args *skel.CmdArgs) error {
	s, err := open(args, true)
	if err != nil {
		return err
	}
	defer s.close()
	valid := map[string]bool{}
	for _, v := range s.conf.ValidAttachments {
		valid[v.ContainerID+"/"+v.IfName] = true
		valid[HostInterface(s.conf.Mode, HostInterfaceKey(s.conf.Mode, s.conf.Name, v.ContainerID, v.IfName, "", ""))] = true
	}
	var errs []error
	for _, a := range slices.Clone(s.Attachments) {
		switch {
		case a.ContainerID != "" && valid[a.ContainerID+"/"+a.IfName] && !a.Pending:
		case a.ContainerID == "" && (valid[a.HostIf] || s.conf.Mode == ModeTransparent && s.alive(&a)):
		default:
			errs = append(errs, s.remove(a))
		}
	}
	return joined(errs)
}

// check is the command CHECK: every difference from what ADD made is named.
func check(args *skel.CmdArgs) error {
	s, err := open(args, false)
	if err != nil {
		return err
	}
	defer s.close()
	want, err := s.attachment(args)
	if err != nil {
		return err
	}
	if s.conf.PrevResult == nil {
		return coded(types.ErrInvalidNetworkConfig, fmt.Errorf("check %s: prevResult is missing from the configuration; give the ADD's result", args.IfName))
	}
	a := s.find(want.ContainerID, want.IfName, want.HostIf)
	if a == nil || a.Pending {
		return coded(types.ErrUnknownContainer, fmt.Errorf("check %s of container %s: network %s has no such attachment", args.IfName, args.ContainerID, s.conf.Name))
	}
	bad := s.checkPrevResult(a)
	bad = append(bad, s.net.Check(a)...)
	bad = append(bad, checkPod(args.Netns, a, s.net.PodWants(a))...)
	return wrap(fmt.Sprintf("check %s of container %s", args.IfName, args.ContainerID), joined(bad))
}

// checkPrevResult compares the ADD's result with the attachment.
func (s *session) checkPrevResult(a *Attachment) []error {
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

// status is the command STATUS: error 50 when no ADD could succeed (no address, no ebtables), 51 when the pods there are without network too (no master).
func status(args *skel.CmdArgs) error {
	s, err := open(args, false)
	if err != nil {
		return err
	}
	defer s.close()
	if _, err := s.node.masterLink(); err != nil {
		return err
	}
	if s.intact {
		if err := s.checkNode(); err != nil {
			return coded(types.ErrLimitedConnectivity, err)
		}
	}
	if s.conf.Mode == ModeBridge || s.conf.Promiscuous {
		if _, err := findProgram("ebtables-nft-restore", "ebtables-restore"); err != nil {
			return coded(types.ErrPluginNotAvailable, err)
		}
	}
	s.Attachments = slices.DeleteFunc(s.Attachments, func(a Attachment) bool { return a.Pending || !s.alive(&a) })
	nodes, err := s.nodeAddrs()
	if err != nil {
		return err
	}
	if _, ok := pick(s.conf.Pool, &s.State, nodes); !ok {
		return coded(types.ErrPluginNotAvailable, exhausted(s.conf, &s.State))
	}
	return nil
}

// checkNode looks whether a network that was complete still has its bridge.
func (s *session) checkNode() error {
	if s.conf.Mode == ModeTransparent {
		return nil
	}
	br, err := link(s.node.Handle, s.conf.Bridge)
	if err == nil && br == nil {
		err = fmt.Errorf("bridge %s is gone; the next ADD makes it anew", s.conf.Bridge)
	}
	return err
}
