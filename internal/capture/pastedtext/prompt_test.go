package pastedtext

import "testing"

func TestPlainPrompt(t *testing.T) {
	for line, want := range map[string]string{
		"➜  ~ iptables -t nat -S":                "$ iptables -t nat -S",
		"➜  ~ git:(main) ✗ sudo iptables -S":     "$ sudo iptables -S",
		"❯ sudo -n nft list ruleset":             "$ sudo -n nft list ruleset",
		"λ ip route":                             "$ ip route",
		"node-1% ip route":                       "user@node-1:~$ ip route",
		"node-1:/etc # iptables-save":            "user@node-1:~$ iptables-save",
		"node-1:~> ip addr":                      "user@node-1:~$ ip addr",
		"core@node-1 ~/src> ip addr":             "core@node-1:~$ ip addr",
		"bash-5.1# ip route show table 2":        "$ ip route show table 2",
		"sh-4.4$ /sbin/iptables-save -t nat":     "$ /sbin/iptables-save -t nat",
		"- iptables -L -n":                       "$ iptables -L -n",
		"2. iptables-legacy -S":                  "$ iptables-legacy -S",
		"the output of `iptables -t nat -S` is:": "$ iptables -t nat -S",
		"-A FORWARD -j DROP":                     "-A FORWARD -j DROP",
		"*nat":                                   "*nat",
		"10.0.0.0/24 dev eth0":                   "10.0.0.0/24 dev eth0",
		"default via 10.0.0.1 dev eth0":          "default via 10.0.0.1 dev eth0",
		"DROP  all -- 0.0.0.0/0 0.0.0.0/0":       "DROP  all -- 0.0.0.0/0 0.0.0.0/0",
		"1: lo: <UP> mtu 1":                      "1: lo: <UP> mtu 1",
		"What does iptables do?":                 "What does iptables do?",
		"Look at `iptables -S`.":                 "Look at `iptables -S`.",
	} {
		if got := plainPrompt(line); got != want {
			t.Errorf("%q: got %q", line, got)
		}
	}
}

// TestPrompts: what a command behind any prompt asked for is the context of what follows.
func TestPrompts(t *testing.T) {
	for _, prompt := range []string{"$ ", "# ", "➜  ~ ", "❯ sudo ", "node-1% ", "root@n:~# ", "[root@n ~]# ", "n:/ # ", "bash-5.1# ", "- ", "/ # "} {
		_, saved := tablesOf(t, prompt+"iptables -t mangle -S\n-P FORWARD ACCEPT\n-A FORWARD -j DROP\n"+prompt+"iptables -t raw -S\n-A OUTPUT -j DROP\n")
		const want = "*raw\n:OUTPUT ACCEPT [0:0]\n-A OUTPUT -j DROP\nCOMMIT\n*mangle\n:FORWARD ACCEPT [0:0]\n-A FORWARD -j DROP\nCOMMIT\n"
		if saved != want {
			t.Errorf("behind %q:\n%s", prompt, saved)
		}
	}
}
