package preflight

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	mdlayher "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/loopmount"
	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/pods/cgroup"
	"packetwalk.dev/internal/pods/realnode/boot"
)

// run runs a program in the namespace. The error has the program's output.
func run(ctx context.Context, ns *netns.Namespace, input string, name string, args ...string) error {
	_, err := program.Command{Path: name, Args: args, Stdin: []byte(input), In: ns.Do}.Output(ctx)
	var e *program.Error
	if errors.As(err, &e) && e.Stderr != "" {
		return errors.New(e.Stderr)
	}
	return err
}

// tryProcessNamespaces leaves the propagation of mounts: a root that is not a mount point, as in a chroot, has none.
func tryProcessNamespaces(ctx context.Context, ns *netns.Namespace) error {
	return run(ctx, ns, "", "unshare", "--mount", "--propagation=unchanged", "--uts", "--ipc", "--pid", "--fork", "--mount-proc", "/bin/true")
}

// trySysctls writes settings that every lab changes. Their value stays.
func trySysctls(_ context.Context, ns *netns.Namespace) error {
	return ns.SetSysctls(netns.Sysctl{Key: "net/ipv4/ip_forward", Value: "1"}, netns.Sysctl{Key: "net/ipv4/conf/lo/proxy_arp", Value: "1"})
}

func tryVeth(_ context.Context, ns *netns.Namespace) error {
	return addLink(ns, &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "check0"}, PeerName: "check1"})
}

func tryBridge(_ context.Context, ns *netns.Namespace) error {
	return addLink(ns, &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "check2"}})
}

func addLink(ns *netns.Namespace, link netlink.Link) error {
	h, err := ns.Handle()
	if err != nil {
		return err
	}
	return h.LinkAdd(link)
}

func tryBridgeNetfilter(_ context.Context, ns *netns.Namespace) error {
	return ns.SetSysctls(netns.Sysctl{Key: "net/bridge/bridge-nf-call-iptables", Value: "1"})
}

func tryPolicyRouting(_ context.Context, ns *netns.Namespace) error {
	h, err := ns.Handle()
	if err != nil {
		return err
	}
	mask := uint32(0xffff)
	rule := netlink.NewRule()
	rule.Family, rule.Priority, rule.Table, rule.Mark, rule.Mask = unix.AF_INET, 1000, 1001, 1, &mask
	if err := h.RuleAdd(rule); err != nil {
		return fmt.Errorf("add rule fwmark 0x1/0xffff lookup 1001: %w", err)
	}
	everywhere := &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
	err = h.RouteAdd(&netlink.Route{LinkIndex: 1, Dst: everywhere, Table: 1001, Scope: unix.RT_SCOPE_LINK})
	if err != nil && !errors.Is(err, unix.ENETDOWN) {
		return fmt.Errorf("add route in table 1001: %w", err)
	}
	return nil
}

// tryRawSockets opens the sockets that send resets, and those that see packets on wires.
func tryRawSockets(_ context.Context, ns *netns.Namespace) error {
	return ns.Do(func() error {
		for _, s := range [][3]int{{unix.AF_PACKET, unix.SOCK_RAW, 0}, {unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW}} {
			fd, err := unix.Socket(s[0], s[1]|unix.SOCK_CLOEXEC, s[2])
			if err != nil {
				return os.NewSyscallError("socket", err)
			}
			if s[0] == unix.AF_PACKET {
				always := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}
				err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &always[0]})
			}
			_ = unix.Close(fd)
			if err != nil {
				return os.NewSyscallError("setsockopt SO_ATTACH_FILTER", err)
			}
		}
		return nil
	})
}

func tryConntrack(_ context.Context, ns *netns.Namespace) error {
	_, err := ns.Flows()
	return err
}

// trySetMatch makes the set that its rule looks at.
func trySetMatch(ctx context.Context, ns *netns.Namespace) error {
	if err := run(ctx, ns, "create check-match hash:net -exist\n", "ipset", "restore"); err != nil {
		return err
	}
	return run(ctx, ns, "*nat\n-A POSTROUTING -m set --match-set check-match src -j ACCEPT\nCOMMIT\n", "iptables-restore", "--wait=5")
}

// tryAccounting makes an accounting object and a rule that counts with it (linux/netfilter/nfnetlink_acct.h).
func tryAccounting(ctx context.Context, ns *netns.Namespace) error {
	const acctNew, acctName = 0, 1
	conn, err := mdlayher.Dial(unix.NETLINK_NETFILTER, &mdlayher.Config{NetNS: ns.FD()})
	if err != nil {
		return err
	}
	defer conn.Close()
	name, err := mdlayher.MarshalAttributes([]mdlayher.Attribute{{Type: acctName, Data: []byte("check\x00")}})
	if err != nil {
		return err
	}
	_, err = conn.Execute(mdlayher.Message{
		Header: mdlayher.Header{Type: unix.NFNL_SUBSYS_ACCT<<8 | acctNew, Flags: mdlayher.Request | mdlayher.Acknowledge | mdlayher.Create},
		Data:   append([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0}, name...),
	})
	if err != nil {
		return fmt.Errorf("create accounting object: %w", err)
	}
	return run(ctx, ns, "*filter\n-A FORWARD -m nfacct --nfacct-name check -j DROP\nCOMMIT\n", "iptables-restore", "--wait=5")
}

// inDirectory runs f with a new directory on a file system in memory, which can be the upper one of an overlay. It is below /run, where
// labs are, or below $TMPDIR: one that is missing does not make a kernel's feature fail.
func inDirectory(f func(dir string) error) (err error) {
	dir, err := os.MkdirTemp("/run", "packetwalk-check")
	if err != nil {
		dir, err = os.MkdirTemp("", "packetwalk-check")
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(dir)) }()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16m,mode=0700"); err != nil {
		return fmt.Errorf("mount tmpfs: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH)) }()
	return f(dir)
}

func tryOverlay(context.Context, *netns.Namespace) error {
	return inDirectory(func(dir string) error {
		for _, d := range []string{"lower", "upper", "work", "merged"} {
			if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
				return err
			}
		}
		merged := filepath.Join(dir, "merged")
		options := fmt.Sprintf("lowerdir=%s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", dir)
		if err := unix.Mount("overlay", merged, "overlay", 0, options); err != nil {
			return fmt.Errorf("mount overlay: %w", err)
		}
		return unix.Unmount(merged, unix.MNT_DETACH)
	})
}

func tryDisk(ctx context.Context, ns *netns.Namespace) error {
	return inDirectory(func(dir string) error {
		file, at := filepath.Join(dir, "disk.img"), filepath.Join(dir, "disk")
		err := os.WriteFile(file, nil, 0o600)
		if err = errors.Join(err, os.Truncate(file, 8<<20), os.Mkdir(at, 0o700)); err != nil {
			return err
		}
		if err := run(ctx, ns, "", "mkfs.ext4", "-q", "-F", "-O", "^has_journal", file); err != nil {
			return err
		}
		if err := loopmount.Mount(file, at); err != nil {
			return err
		}
		return unix.Unmount(at, 0)
	})
}

// group returns the control group of a trial.
func group() string { return fmt.Sprintf("packetwalk-check-%d", os.Getpid()) }

func tryLimits(context.Context, *netns.Namespace) error {
	bounds, err := cgroup.Machine()
	if err != nil {
		return err
	}
	missing := cgroup.Bound(group(), bounds.Lab)
	errs := []error{cgroup.Remove(group())}
	for _, m := range missing {
		errs = append(errs, errors.New(m))
	}
	return errors.Join(errs...)
}

func tryGroupPrograms(context.Context, *netns.Namespace) error {
	return errors.Join(boot.TryGroup(group()), cgroup.Remove(group()))
}

// firstUser and users are the user ids that the trial maps: in the range that kubelet takes for pods (pkg/kubelet/userns).
const firstUser, users = 65536, 65536

// tryMappedMounts maps a mount of tmpfs into a user namespace (mount_setattr(2), MOUNT_ATTR_IDMAP), as runc does with a pod's volumes. Of
// the file systems of a node's volumes tmpfs was the last that the kernel could map, in 6.3.
func tryMappedMounts(ctx context.Context, _ *netns.Namespace) error {
	return inDirectory(func(dir string) error {
		mapped := []syscall.SysProcIDMap{{HostID: firstUser, Size: users}}
		cmd := exec.CommandContext(ctx, "cat")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: mapped, GidMappings: mapped}
		end, err := cmd.StdinPipe()
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return fmt.Errorf("make user namespace: %w", err)
		}
		err = mapMount(dir, fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid))
		return errors.Join(err, end.Close(), cmd.Wait())
	})
}

// mapMount maps a clone of the mount at dir into a user namespace, by its file.
func mapMount(dir, namespace string) error {
	users, err := os.Open(namespace)
	if err != nil {
		return err
	}
	defer users.Close()
	tree, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("clone mount: %w", err)
	}
	defer unix.Close(tree)
	err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(users.Fd())})
	return os.NewSyscallError("mount_setattr", err)
}
