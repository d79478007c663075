package distribution

import (
	"io/fs"
	"strings"
)

// A Part is some of the distribution's packages, with those that they depend on.
type Part struct {
	name      string
	wanted    []string
	without   []string // packages that only dpkg needs, or what is left out anyway
	essential bool     // what dpkg calls so comes too
}

// Small is for images that are there for one program: a shell and what a request, a ping and a look at the network take. Each node unpacks
// it before its first pod runs.
var Small = Part{name: "small", wanted: strings.Fields(`
	base-files base-passwd bash ca-certificates coreutils curl dash findutils grep hostname iproute2 iputils-ping libc6 libc-bin ncurses-base
	netbase netcat-openbsd procps sed tcpdump wget
`), without: strings.Fields(`adduser debconf dpkg perl-base tar`)}

// Whole is for images that stand for a distribution, and for nodes: the programs of a network's engineer, by purpose, and the library that
// runc needs.
var Whole = Part{name: "whole", essential: true, wanted: strings.Fields(`
	base-files base-passwd bash coreutils dash libc6 libc-bin
	debianutils diffutils file findutils gawk grep gzip jq less login mawk ncurses-base ncurses-bin passwd sed tar tzdata util-linux xz-utils
	hostname lsof mount procps psmisc strace
	arping bind9-dnsutils bind9-host bridge-utils ca-certificates conntrack curl ebtables ethtool iperf3 iproute2 ipset iptables
	iputils-arping iputils-ping iputils-tracepath mtr-tiny net-tools netbase netcat-openbsd nftables openssl socat tcpdump traceroute wget
	libseccomp2
`)}

func (part Part) String() string { return part.name }

// required are those without which no command runs.
var required = []string{"base-files", "bash", "coreutils", "dash", "libc6", "libc-bin"}

// omitted are files and directories that containers do not have, with all below them: documentation, languages, what is for another kernel
// or a compiler, and dpkg's own records, which would tell of the machine.
var omitted = []string{
	"/boot", "/usr/include", "/usr/lib/modules", "/usr/share/bug", "/usr/share/doc", "/usr/share/doc-base", "/usr/share/info",
	"/usr/share/lintian", "/usr/share/locale", "/usr/share/man", "/usr/share/menu", "/usr/src", "/var/lib/dpkg",
}

// merged are the top directories that are links to those of the same name in /usr.
var merged = []string{"bin", "lib", "lib32", "lib64", "libx32", "sbin"}

// everybodys is the mode of directories in which everybody may make files.
const everybodys = fs.ModeSticky | 0o777

// directories are what every container has, whatever the packages say; in the order that they are made in.
var directories = []struct {
	name string
	mode fs.FileMode
}{
	{"dev", 0o755}, {"etc", 0o755}, {"home", 0o755}, {"media", 0o755}, {"mnt", 0o755}, {"opt", 0o755}, {"proc", 0o555}, {"root", 0o700},
	{"run", 0o755}, {"run/lock", everybodys}, {"srv", 0o755}, {"sys", 0o555}, {"tmp", everybodys}, {"usr", 0o755}, {"usr/local", 0o755},
	{"usr/local/bin", 0o755}, {"usr/local/sbin", 0o755}, {"var", 0o755}, {"var/cache", 0o755}, {"var/lib", 0o755}, {"var/log", 0o755},
	{"var/spool", 0o755}, {"var/tmp", everybodys},
}

// made are the files that no package has, or that are not what the package has. The accounts are those that programs look for: tcpdump
// gives its rights to the one of its name. The prompt is the one of the distributions' images.
var made = map[string]string{
	"etc/passwd": `root:x:0:0:root:/root:/bin/bash
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
bin:x:2:2:bin:/bin:/usr/sbin/nologin
sys:x:3:3:sys:/dev:/usr/sbin/nologin
www-data:x:33:33:www-data:/var/www:/usr/sbin/nologin
_apt:x:42:65534::/nonexistent:/usr/sbin/nologin
tcpdump:x:72:72::/nonexistent:/usr/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
`,
	"etc/group":       "root:x:0:\ndaemon:x:1:\nbin:x:2:\nsys:x:3:\nadm:x:4:\ntty:x:5:\nwww-data:x:33:\ntcpdump:x:72:\nnogroup:x:65534:\n",
	"etc/shells":      "/bin/sh\n/bin/bash\n/bin/dash\n",
	"etc/bash.bashrc": `PS1='\u@\h:\w\$ '` + "\n",
	"etc/nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\nprotocols: files\nservices: files\n" +
		"ethers: files\nrpc: files\n",
	"etc/timezone": "Etc/UTC\n",
}

// linked are the links that packages' scripts make, and where they lead.
var linked = map[string]string{
	"etc/localtime": "/usr/share/zoneinfo/Etc/UTC", "var/lock": "../run/lock", "var/run": "../run",
}
