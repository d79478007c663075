package main

import (
	"fmt"
	"sort"
	"strings"
	"time"
)

// scaleExtra is the number of services that there are for the agents' memory.
const scaleExtra = 100

// wideSubnet has addresses for many nodes.
const wideSubnet = `  azure:
    vnets:
    - name: aksVnet
      addressPrefixes: [10.13.0.0/16]
      subnets: [{name: aks, prefix: 10.13.64.0/18}]
`

// benchScale measures a lab of many nodes: the time from `up` until all pods are Ready, what memory it takes, and down.
func benchScale(int) (err error) {
	l := newLab("scale")
	begin := time.Now()
	defer func() {
		downBegin := time.Now()
		if e := l.down(); e != nil && err == nil {
			err = e
		}
		fmt.Printf("  %-52s %9.2f s\n", "down", time.Since(downBegin).Seconds())
	}()
	cluster := ofRuntime(nodes.count, max(40, 2*nodes.pods/nodes.count)) + wideSubnet
	if _, err := l.up(cluster); err != nil {
		return err
	}
	fmt.Printf("  %-52s %9.2f s\n", fmt.Sprintf("%d nodes up", nodes.count), time.Since(begin).Seconds())
	if err := l.apply(whereami(nodes.pods)); err != nil {
		return err
	}
	// By a watch: a kubectl that asks again and again takes a tenth of two processors.
	ready := fmt.Sprintf("--for=jsonpath={.status.readyReplicas}=%d", nodes.pods)
	if _, err := l.kubectl("wait", "deployment/whereami", ready, "--timeout=270s"); err != nil {
		return err
	}
	fmt.Printf("  %-52s %9.2f s \n", fmt.Sprintf("%d pods Ready, from the beginning of up", nodes.pods), time.Since(begin).Seconds())
	if err := l.apply(manyServices(scaleExtra)); err != nil {
		return err
	}
	time.Sleep(15 * time.Second) // the agents follow, and give memory back
	return l.printUse()
}

// manyServices returns services that share whereami's pods, so that the agents have as many rules as in a cluster of that many.
func manyServices(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Service\nmetadata: {name: s%d}\nspec: {ports: [{port: 80}]}\n---\n"+
			"apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s%d, labels: {kubernetes.io/service-name: s%d}}\n"+
			"addressType: IPv4\nports: [{port: 80, protocol: TCP}]\nendpoints: [{addresses: [10.13.64.10]}, {addresses: [10.13.64.11]}, {addresses: [10.13.64.12]}]\n", i, i, i)
	}
	return b.String()
}

// printUse prints the memory and the processor time of the lab, by kind of process. What of that was used by processes that have ended, and
// whose parent is not one of the lab's, is not in it.
func (l *lab) printUse() error {
	processes, err := l.processes()
	if err != nil {
		return err
	}
	type sum struct {
		name                  string
		count                 int
		rss, pss, rssMax, cpu float64
	}
	sums := map[string]*sum{}
	var total sum
	for _, p := range processes {
		s := sums[p.name]
		if s == nil {
			s = &sum{name: p.name}
			sums[p.name] = s
		}
		s.count, s.rss, s.pss, s.rssMax, s.cpu = s.count+1, s.rss+p.rss, s.pss+p.pss, max(s.rssMax, p.rss), s.cpu+p.cpu
		total.rss, total.pss, total.cpu = total.rss+p.rss, total.pss+p.pss, total.cpu+p.cpu
	}
	var list []*sum
	for _, s := range sums {
		list = append(list, s)
	}
	sort.Slice(list, func(i, j int) bool { return list[i].pss > list[j].pss })
	fmt.Printf("  %-32s %6s %12s %12s %14s %14s\n", "use of", "number", "PSS, all MB", "RSS, all MB", "RSS, most MB", "processor, s")
	for _, s := range list {
		fmt.Printf("  %-32s %6d %12.0f %12.0f %14.1f %14.1f\n", s.name, s.count, s.pss, s.rss, s.rssMax, s.cpu)
	}
	fmt.Printf("  %-32s %6d %12.0f %12.0f %14s %14.1f\n", "the lab", len(processes), total.pss, total.rss, "", total.cpu)
	return nil
}
