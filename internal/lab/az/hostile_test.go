package az

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// TestHostile: what customers and containers name is text in tables and lists of values: no terminal takes it for a command, and a line of
// them stays one.
func TestHostile(t *testing.T) {
	const evil = "nginx\n\x1b[2Jowned\x1b]0;title\x07\t\u202egnp.\u009b31m\r"
	l := containers()
	l.ContainerGroups = l.ContainerGroups[:1]
	l.ContainerGroups[0].Properties.Containers[0].Properties.Image = evil
	l.Network.SecurityGroups = nsgs().SecurityGroups
	l.Network.SecurityGroups[0].Rules[0].Name = evil
	group := l.Network.NodeResourceGroup
	nsg := "network nsg rule list -g " + l.Network.ResourceGroup + " --nsg-name " + l.Network.SecurityGroups[0].Name
	if strings.HasPrefix(l.Network.SecurityGroups[0].Name, "aks-") {
		nsg = strings.Replace(nsg, l.Network.ResourceGroup, group, 1)
	}
	rules := len(l.Network.SecurityGroups[0].Rules)
	for command, lines := range map[string]int{
		"container list -o table": 3, "container show -g " + group + " -n default-job -o table": 3,
		"container list -o table --query [].containers[0].image": 3, "container list -o table --query [].{Image:containers[0].image}": 3,
		"container list -o tsv --query [].containers[0].image": 1, "container list -o tsv --query [].[name,containers[0].image]": 1,
		`container list -o table --query [].{"":name}`: 3,
		nsg + " -o table": 2 + rules, nsg + " -o tsv --query [].name": rules,
	} {
		var out, errs bytes.Buffer
		if code := Run(strings.Fields(command), l, &out, &errs); code != 0 {
			t.Errorf("az %s: exit %d, %s", command, code, &errs)
		}
		if n := strings.Count(out.String(), "\n"); n != lines {
			t.Errorf("az %s: %d lines, want %d: %q", command, n, lines, out.String())
		}
		if strings.ContainsAny(out.String(), "\x1b\x07\r\u202e\u009b") {
			t.Errorf("az %s: %q", command, out.String())
		}
	}
	var out, errs bytes.Buffer
	var images []string
	Run(strings.Fields("container list --query [].containers[0].image"), l, &out, &errs)
	if err := json.Unmarshal(out.Bytes(), &images); err != nil || len(images) != 1 || images[0] != evil {
		t.Errorf("programs get %q, %v", images, err)
	}
}
