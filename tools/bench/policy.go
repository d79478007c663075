package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// The sizes of benchPolicy's labs. A node of AKS, and so of a lab, runs at most 250 pods: the others are in the API alone.
const (
	policyNodes  = 50
	manyPolicies = 1000
	manyPods     = 2000
	localPods    = 250
)

// benchPolicy measures felix: a change that all nodes follow, what it costs a lab's start, a new node's first rules, and many policies.
func benchPolicy(n int) error {
	return errors.Join(policyLabels(n), policyUp(n), policyFirst(n), policyMany())
}

// simulatedCalico is a lab with Calico and simulated nodes, beside the node that AKS's own pods need.
func simulatedCalico(count, maxPods int) string {
	return oneNode + fmt.Sprintf("spec:\n  network: {policy: calico}\n  nodePools:\n  - {name: system, maxPods: 30}\n"+
		"  - {name: many, mode: User, count: %d, maxPods: %d, runtime: simulated}\n%s", count, maxPods, wideSubnet)
}

// apiPod is a pod's object.
func apiPod(name, node, labels string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"labels":{%s}},"spec":{"nodeName":%q,"tolerations":[{"operator":"Exists"}],`+
		`"containers":[{"name":"c","image":"any","ports":[{"containerPort":80}]}]}}`, name, labels, node)
}

// apiPolicy lets pods with one label reach those with another.
func apiPolicy(name, to, from string) string {
	return fmt.Sprintf(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":%q},"spec":{"podSelector":{"matchLabels":{%s}},`+
		`"ingress":[{"from":[{"podSelector":{"matchLabels":{%s}}}],"ports":[{"port":80}]}]}}`, name, to, from)
}

const (
	podsPath     = "/api/v1/namespaces/default/pods"
	policiesPath = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies"
	mergePatch   = "application/merge-patch+json"
)

// all makes requests, several at once.
func (a *api) all(count int, of func(i int) request) error {
	g, ctx := errgroup.WithContext(context.Background())
	g.SetLimit(16)
	for i := range count {
		g.Go(func() error { return a.do(ctx, of(i)) })
	}
	return g.Wait()
}

func post(path, body string) request { return request{http.MethodPost, path, "application/json", body} }

// policyLabels changes a pod's label, by which a policy on each node lets it in.
func policyLabels(n int) (err error) {
	l, err := makeLab("policy", simulatedCalico(policyNodes, 10))
	defer l.end(&err)
	if err != nil {
		return err
	}
	a, nodes, err := l.manyNodes()
	if err != nil {
		return err
	}
	if err := a.all(len(nodes), func(i int) request {
		return post(podsPath, apiPod(fmt.Sprint("web-", i), nodes[i].name, `"app":"web"`))
	}); err != nil {
		return err
	}
	err = errors.Join(a.do(context.Background(), post(podsPath, apiPod("client", nodes[0].name, `"role":"none"`))),
		a.do(context.Background(), post(policiesPath, apiPolicy("web", `"app":"web"`, `"role":"front"`))))
	if err != nil {
		return err
	}
	if _, err := l.kubectl("wait", "--for=condition=Ready", "pods", "--all", "--timeout=120s"); err != nil {
		return err
	}
	out, err := l.kubectl("get", "pod", "client", "-o", "jsonpath={.status.podIP}")
	if err != nil {
		return err
	}
	l.restFelix()
	set := selectorSet("role", "front")
	label := func(role string) request {
		return request{http.MethodPatch, podsPath + "/client", mergePatch, fmt.Sprintf(`{"metadata":{"labels":{"role":%q}}}`, role)}
	}
	c := change{do: [2]request{label("front"), label("none")}, follow: func(ctx context.Context, n *changedNode, turn int) (time.Time, error) {
		return n.inSet(ctx, set, net.ParseIP(out), turn == 0)
	}}
	each, last := series{name: "a node, after the request", unit: "ms"}, series{name: "the last node, after the request", unit: "ms"}
	sum, count := l.applied(nodes)
	used, turns := l.felixTime(), 4*n
	for i := range turns {
		took, _, err := c.once(a, nodes, i%2)
		if err != nil {
			return err
		}
		for _, t := range took {
			each.add(ms(t))
		}
		last.add(ms(slices.Max(took)))
		time.Sleep(time.Second)
	}
	sumAfter, countAfter := l.applied(nodes)
	fmt.Printf("  a pod's label in the IP sets of %d nodes:\n", policyNodes)
	each.print()
	last.print()
	sum, count = sumAfter-sum, countAfter-count
	fmt.Printf("  %-52s %9.2f ms     (%.0f of them)\n", "felix's own time to apply changes, mean", 1000*sum/count, count)
	used = 1000 * (l.felixTime() - used) / float64(turns*len(nodes))
	fmt.Printf("  %-52s %9.2f ms     (its children's too)\n", "felix's processor time, a node and change", used)
	return nil
}

// policyUp brings a node up with Calico and without, by turns.
func policyUp(n int) error {
	var t table
	for range n {
		for _, network := range []string{"none", "calico"} {
			l := newLab("policy")
			begin := time.Now()
			_, err := l.up(oneNode + "spec: {network: {mode: transparent, policy: " + network + "}, nodePools: [{count: 1}]}\n")
			if err == nil {
				t.add("up of one node, policy "+network, "s", time.Since(begin).Seconds())
			}
			if err := errors.Join(err, l.down()); err != nil {
				return err
			}
		}
	}
	t.print()
	without, with := t.series[0].median(), t.series[1].median()
	fmt.Printf("  %-52s %9.2f s      (ratio %.2f)\n", "with Calico, longer by", with-without, with/without)
	return nil
}

// policyFirst lets nodes join, one after the other, and looks at their kernels and their conditions.
func policyFirst(n int) (err error) {
	sizes := func(count int) string {
		return oneNode + fmt.Sprintf("spec: {network: {policy: calico}, nodePools: [{name: nodepool1, count: 1}, {name: more, count: %d}]}\n", count)
	}
	l, err := makeLab("policy", sizes(1))
	defer l.end(&err)
	if err != nil {
		return err
	}
	a, err := l.api()
	if err != nil {
		return err
	}
	t := series{name: "felix's first rules, after the node was Ready", unit: "ms"}
	for i := range n {
		took, err := l.firstRules(a, fmt.Sprintf("aks-more-31351229-%d", i+1), sizes(i+2))
		if err != nil {
			return err
		}
		t.add(ms(took))
	}
	t.print()
	return nil
}

// firstRules is how long after a new node's condition Ready felix's first rules were in its kernel; below 0 where they were first.
func (l *lab) firstRules(a *api, node, config string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	ready, rules := make(chan time.Time, 1), make(chan time.Time, 1)
	err := a.watch(ctx, "/api/v1/nodes", func(r io.Reader) {
		for d := json.NewDecoder(r); ; {
			var e struct{ Object object }
			if d.Decode(&e) != nil {
				return
			}
			if e.Object.Metadata.Name == node && e.Object.is("Ready") {
				ready <- time.Now()
				return
			}
		}
	})
	if err != nil {
		return 0, err
	}
	var g errgroup.Group
	g.Go(func() error {
		return chainMade(ctx, filepath.Join("/run/packetwalk", l.name, "netns", node), "cali-FORWARD", rules)
	})
	if _, err := l.up(config); err != nil {
		cancel()
		return 0, errors.Join(err, g.Wait())
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	select {
	case at := <-ready:
		return (<-rules).Sub(at), nil
	case <-ctx.Done():
		return 0, fmt.Errorf("node %s is not Ready: %w", node, ctx.Err())
	}
}

// policyMany gives a node's felix many policies, and pods that they select: as many as a node runs, and others on a node that is an object
// alone.
func policyMany() (err error) {
	l, err := makeLab("policy", simulatedCalico(1, localPods))
	defer l.end(&err)
	if err != nil {
		return err
	}
	a, nodes, err := l.manyNodes()
	if err != nil {
		return err
	}
	labels := func(i int) string { return fmt.Sprintf(`"app":"a%d"`, i%localPods) }
	ctx, begin := context.Background(), time.Now()
	err = errors.Join(a.all(localPods, func(i int) request { return post(podsPath, apiPod(fmt.Sprint("pod-", i), nodes[0].name, labels(i))) }),
		a.do(ctx, post("/api/v1/nodes", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"paper"}}`)),
		a.all(manyPods-localPods, func(i int) request { return post(podsPath, apiPod(fmt.Sprint("paper-", i), "paper", labels(i))) }),
		a.all(manyPods-localPods, func(i int) request {
			ip := fmt.Sprintf("10.13.%d.%d", 200+i/250, 1+i%250)
			return request{http.MethodPatch, fmt.Sprintf("%s/paper-%d/status", podsPath, i), mergePatch,
				fmt.Sprintf(`{"status":{"phase":"Running","podIP":%q,"podIPs":[{"ip":%q}]}}`, ip, ip)}
		}))
	if err != nil {
		return err
	}
	own := "--field-selector=spec.nodeName=" + nodes[0].name
	if _, err := l.kubectl("wait", "--for=condition=Ready", "pods", own, "--timeout=280s"); err != nil {
		return err
	}
	fmt.Printf("  %d pods of one node Ready, %d in the API beside (%.0f s)\n", localPods, manyPods-localPods, time.Since(begin).Seconds())
	time.Sleep(10 * time.Second)
	before, err := nodes[0].felix()
	if err != nil {
		return err
	}
	begin = time.Now()
	err = a.all(manyPolicies, func(i int) request {
		return post(policiesPath, apiPolicy(fmt.Sprint("p", i), labels(i), labels(i+1+i/localPods)))
	})
	if err != nil {
		return err
	}
	posted := time.Since(begin)
	for time.Since(begin) < 5*time.Minute {
		count, err := nodes[0].chains("cali-pi-")
		if err != nil {
			return err
		}
		if count == manyPolicies {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	took := time.Since(begin)
	time.Sleep(5 * time.Second) // the rest of the rules, and memory that is given back
	after, err := nodes[0].felix()
	fmt.Printf("  %d policies, 4 for each of the node's pods:\n", manyPolicies)
	fmt.Printf("  %-52s %9.2f s\n", "the API server has them, after the first request", posted.Seconds())
	fmt.Printf("  %-52s %9.2f s\n", "all their chains, after the first request", took.Seconds())
	fmt.Printf("  %-52s %9.1f MB     (before: %.1f)\n", "felix's resident memory", after.rss, before.rss)
	fmt.Printf("  %-52s %9.1f s      (from its start: %.1f)\n", "felix's processor time for them, children's too", after.cpu-before.cpu, after.cpu)
	return err
}
