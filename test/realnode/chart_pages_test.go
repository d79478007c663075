package realnode

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	"packetwalk.dev/internal/node/proxy/nftables"
)

// Where a file has commands: a page in its blocks of shell, a manifest in its first lines.
var (
	shellBlock   = regexp.MustCompile("(?s)\n```sh\n(.*?)```\n")
	headerBlock  = regexp.MustCompile(`(?s)^(?:#[^\n]*\n)*?#\n((?:#   [^\n]*\n)+)#\n`)
	cleanupBlock = regexp.MustCompile("(?s)\n```\n(kubectl debug .*?)```\n")
)

// commands returns the blocks of commands of a file, in their order.
func (c *chartTest) commands(t *testing.T, file string, block *regexp.Regexp) (found []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(c.Root, file))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range block.FindAllStringSubmatch(string(text), -1) {
		found = append(found, m[1])
	}
	if len(found) == 0 {
		t.Fatalf("%s has no commands", file)
	}
	return found
}

func (c *chartTest) image() string { return "packetwalk.dev/packetwalk:" + c.tag }

// notes returns the commands that Helm prints after an installation.
func (c *chartTest) notes(t *testing.T) string {
	t.Helper()
	text := c.helm(t, "get", "notes", "packetwalk")
	lines := regexp.MustCompile(`(?m)^  (kubectl .*)$`).FindAllString(text, -1)
	if len(lines) != 3 {
		t.Fatalf("the notes have %d commands: %s", len(lines), text)
	}
	return strings.Join(lines, "\n")
}

// hasDomain checks the SELinux domain that the chart's pods ask for. A kernel without SELinux runs them without one.
func (c *chartTest) hasDomain(t *testing.T, want string) {
	t.Helper()
	got := strings.Fields(c.Kubectl(t, "-n", "kube-system", "get", "pods", "-l", "app.kubernetes.io/instance=packetwalk",
		"-o", `jsonpath={range .items[*]}{.spec.securityContext.seLinuxOptions.type}{"\n"}{end}`))
	if len(got) != 2 || strings.Trim(strings.Join(got, ""), want) != "" { // on two nodes
		t.Errorf("the pods have the domains %q, want %s", got, want)
	}
}

// orphanedTable uninstalls the chart so that its table stays, and removes the table by the command that walks and the status name.
func (c *chartTest) orphanedTable(t *testing.T) {
	c.install(t)
	c.step(t, "leave the table", func() {
		c.run(t, strings.Replace(c.blocks[blockUpgrade], "values.yaml", "values.yaml --set serviceProxy.cleanupOnDelete=false", 1))
		c.ready(t, "nftables")
		c.helm(t, "uninstall", "packetwalk", "--wait")
		c.patchKubeProxy(t, "null")
		c.Kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/kube-proxy", "--timeout=50s")
	})
	for _, node := range nodes(t, c.World, "real") {
		eventually.Succeeds(t, 50*time.Second, func() error { return c.hasKubeProxys(t, node, "iptables") })
		if err := c.hasNoTable(t, node); err == nil {
			t.Fatalf("%s has no table that was left", node)
		}
	}
	c.rollOut(t) // kube-proxy's rules come first
	const remedy = "packetwalk-node --cleanup --proxy-mode nftables"
	if status, _ := c.Try(time.Minute, "status", "--name", c.Name); !strings.Contains(status, remedy) {
		t.Errorf("the status does not name %q:\n%s", remedy, status)
	}
	c.step(t, "remove the table", func() {
		all := nodes(t, c.World, "real")
		anyNode, labNode, found := strings.Cut(c.commands(t, "docs/service-proxy.md", cleanupBlock)[0], "\npacketwalk ssh ")
		if !found || len(all) != 2 {
			t.Fatalf("%d nodes, and the page has %q", len(all), anyNode)
		}
		c.debug(t, anyNode, all[0], func() error { return c.hasNoTable(t, all[0]) })
		c.run(t, "packetwalk ssh "+strings.Replace(labNode, "NODE", all[1], 1))
		if err := c.hasNoTable(t, all[1]); err != nil {
			t.Error(err)
		}
	})
	c.rollOut(t)
}

// hasNoTable returns an error if a node has packetwalk-node's table.
func (c *chartTest) hasNoTable(t *testing.T, node string) error {
	t.Helper()
	if tables := c.SSH(t, node, "nft", "list", "tables"); strings.Contains(tables, nftables.TableName) {
		return fmt.Errorf("%s has %s", node, tables)
	}
	return nil
}

// manifests applies deploy/manifests by the commands in its files, beside kube-proxy, and deletes them again: after the hand-over, at once,
// and without another service proxy.
func (c *chartTest) manifests(t *testing.T) {
	apply := func(name string) {
		block := c.commands(t, "deploy/manifests/"+name+".yaml", headerBlock)[0]
		block = regexp.MustCompile(`(?m)^#   `).ReplaceAllString(block, "")
		c.run(t, strings.NewReplacer("IMAGE:TAG", c.image(), "https://HOST:PORT", chartAPI, "|PODS|", "|10.244.0.0/16|").Replace(block))
	}
	_, wait, _ := strings.Cut(c.blocks[blockInstall], "\n")
	handOver, _, _ := strings.Cut(c.blocks[blockUninstall], "helm uninstall ")
	remove := c.blocks[blockDeleteManifests]
	c.step(t, "apply the agent", func() {
		apply("node")
		c.Kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/packetwalk-masq-node", "--timeout=50s")
	})
	c.step(t, "apply the service proxy", func() { apply("service-proxy"); c.run(t, wait) })
	c.step(t, "take over", func() { c.run(t, c.blocks[blockTakeOver]); c.ready(t, "nftables") })
	c.step(t, "delete", func() { c.run(t, handOver); c.run(t, remove); c.uninstalled(t, "iptables") })
	c.rollOut(t)

	install := func() {
		apply("service-proxy")
		c.run(t, wait)
		c.run(t, c.blocks[blockTakeOver])
		c.ready(t, "nftables")
	}
	install()
	c.step(t, "delete without waiting", func() { c.patchKubeProxy(t, "null"); c.run(t, remove); c.uninstalled(t, "iptables") })
	c.rollOut(t)

	install()
	t.Run("delete without another service proxy", func(t *testing.T) {
		c.run(t, remove)
		for _, node := range nodes(t, c.World, "real") {
			eventually.Succeeds(t, 50*time.Second, func() error { return c.hasNoTable(t, node) })
		}
	})
	c.patchKubeProxy(t, "null")
	c.rollOut(t)
	c.run(t, strings.NewReplacer("service-proxy.yaml", "node.yaml").Replace(remove))
	c.Kubectl(t, "-n", "kube-system", "wait", "pods", "-l", "app.kubernetes.io/name=packetwalk", "--for=delete", "--timeout=50s")
}
