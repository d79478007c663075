package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func inode(path string) uint64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Sys().(*syscall.Stat_t).Ino
}

const oneNode = "apiVersion: packetwalk.dev/v1alpha1\nkind: Cluster\n"

// ofRuntime returns the cluster.yaml of a lab whose nodes have the runtime that was asked for.
func ofRuntime(count, maxPods int) string {
	const pools = "spec:\n  nodePools: [{name: nodepool1, count: %d, maxPods: %d, runtime: %s}]\n  serviceProxy: {backend: %s}\n"
	if nodes.runtime == "simulated" { // AKS's own pods need a node that runs programs
		return oneNode + fmt.Sprintf("spec:\n  nodePools: [{name: system}, {name: nodepool1, mode: User, count: %d, maxPods: %d, runtime: simulated}]\n"+
			"  serviceProxy: {backend: %s}\n", count, maxPods, nodes.backend)
	}
	return oneNode + fmt.Sprintf(pools, count, maxPods, nodes.runtime, nodes.backend)
}

// nodeOf is the node of a lab of oneNode.
const nodeOf = "aks-nodepool1-31351229-0"

func whereami(replicas int) string {
	return fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata: {name: whereami}
spec:
  replicas: %d
  selector: {matchLabels: {app: whereami}}
  template:
    metadata: {labels: {app: whereami}}
    spec:
      containers:
      - {name: whereami, image: "erjosito/whereami:1.3", ports: [{containerPort: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: whereami}
spec:
  type: LoadBalancer
  ports: [{port: 80}]
  selector: {app: whereami}
`, replicas)
}

// benchAnswer measures from the command `up` to the first HTTP answer on the internet's client, and `down`.
func benchAnswer(n int) error {
	var at, waits table
	for range n {
		if err := answerOnce(&at, &waits); err != nil {
			return err
		}
	}
	at.print()
	fmt.Println("  of that, from one stage to the next:")
	waits.print()
	fmt.Println("  (targets: first answer 5 s, down 1.5 s; up includes the control plane's own start, which is most of it)")
	return nil
}

var stepLine = regexp.MustCompile(`(?m)^ *([0-9.]+) s  (.*)$`)

func answerOnce(at, waits *table) (err error) {
	l := newLab("answer")
	begin := time.Now()
	defer func() {
		downBegin := time.Now()
		if e := l.down(); e != nil && err == nil {
			err = e
		}
		at.add("down", "s", time.Since(downBegin).Seconds())
	}()
	out, err := l.up(ofRuntime(1, 30))
	if err != nil {
		return err
	}
	for _, m := range stepLine.FindAllStringSubmatch(out, -1) {
		s, _ := strconv.ParseFloat(m[1], 64)
		at.add("up, at: "+strings.SplitN(m[2], "\"", 2)[0], "s", s)
	}
	w, err := l.watchAnswer()
	if err != nil {
		return err
	}
	defer w.stop()
	if err := l.apply(whereami(2)); err != nil {
		return err
	}
	applied := time.Now()
	vip, err := w.frontEnd()
	if err != nil {
		return err
	}
	// The client asks the whole time, as a user who reloads the page; its own program is not what is measured.
	if _, err := l.ssh("client", "sh", "-c", "until curl -s -o /dev/null --connect-timeout 0.2 --max-time 1 http://"+vip+
		"; do sleep 0.02; done"); err != nil {
		return err
	}
	answered := time.Now()
	for try := 0; l.probeUp().IsZero() && try < 100; try++ { // the lab notes it a moment after the kernel has it
		time.Sleep(10 * time.Millisecond)
	}
	w.first("back end up under its probe", l.probeUp())
	for stage, at := range l.podStages() {
		w.first(stage, at)
	}
	previous := applied // stage
	for _, s := range []struct{ stage, wait string }{
		{"whereami applied", ""},
		{"pods created", "Deployment, ReplicaSet, Pods: controller manager"},
		{"pods scheduled", "scheduler"},
		{"sandbox requested", "kubelet: watch, volumes"},
		{"sandbox started", "containerd: shim, runc, network namespace, CNI plugin"},
		{"container requested", "kubelet, and containerd's pull if the node lacks the image"},
		{"container started", "containerd, runc"},
		{"a pod Ready", "kubelet: it lists containers once a second; status"},
		{"an endpoint ready", "EndpointSlice: kubelet's status, controller manager"},
		{"rules on the node", "agent"},
		{"back end up under its probe", "load balancer's probe"},
		{"FIRST ANSWER on the internet host", "client"},
	} {
		now, ok := w.when(s.stage)
		switch {
		case s.stage == "whereami applied":
			now = applied
		case s.wait == "client":
			now = answered
		case !ok:
			return fmt.Errorf("nothing was seen of the stage %q before the first answer", s.stage)
		}
		at.add(s.stage+", at", "s", now.Sub(begin).Seconds())
		if s.wait != "" {
			waits.add("… to "+s.stage+" ("+s.wait+")", "s", now.Sub(previous).Seconds())
		}
		previous = now
	}
	frontEnd, _ := w.when("front end known")
	at.add("front end known, at", "s", frontEnd.Sub(begin).Seconds())
	return nil
}

// probeUp returns when the lab first noted that a back end answered its probe; zero when it has not.
func (l *lab) probeUp() time.Time {
	log, _ := os.ReadFile(filepath.Join("/var/lib/packetwalk", l.name, "disk/.logs/lab.log"))
	for line := range strings.Lines(string(log)) {
		if !strings.Contains(line, `msg="back end changed"`) || !strings.Contains(line, "up=true") {
			continue
		}
		stamp, _, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
		at, err := time.Parse(time.RFC3339Nano, stamp)
		if err == nil {
			return at
		}
	}
	return time.Time{}
}

// podStages are the lines of containerd's log on a node that begin and end the stages of a pod of whereami.
var podStages = []struct {
	stage string
	line  *regexp.Regexp
}{
	{"sandbox requested", regexp.MustCompile(`msg="RunPodSandbox for name:\\"whereami-[^ ]*\\" uid:[^ ]+ namespace:[^ ]+"`)},
	{"sandbox started", regexp.MustCompile(`msg="RunPodSandbox for name:\\"whereami-.* returns sandbox id`)},
	{"container requested", regexp.MustCompile(`msg="CreateContainer within sandbox [^ ]+ for container name:\\"whereami\\""`)},
	{"container started", regexp.MustCompile(`msg="StartContainer for [^ ]+ returns successfully"`)},
}

// podStages returns when containerd on the node came to each stage of the first of whereami's pods.
func (l *lab) podStages() map[string]time.Time {
	log, _ := os.ReadFile(filepath.Join("/var/lib/packetwalk", l.name, "nodes", nodeOf, "log/containerd.log"))
	seen := map[string]time.Time{}
	for line := range strings.Lines(string(log)) {
		for i, s := range podStages {
			_, known := seen[s.stage]
			if known || i > 0 && seen[podStages[i-1].stage].IsZero() || !s.line.MatchString(line) {
				continue
			}
			stamp, _, _ := strings.Cut(strings.TrimPrefix(line, `time="`), `"`)
			if at, err := time.Parse(time.RFC3339Nano, stamp); err == nil {
				seen[s.stage] = at
			}
		}
	}
	return seen
}

// A watch notes when each stage was first seen, by listening alone: watches of the API and the kernel's notices of rules. Polling, and
// more kubectls, would take from the lab the processors that it is measured on.
type watch struct {
	cancel context.CancelFunc
	events chan event
	seen   map[string]time.Time
	vip    string
}

// An event is one stage, seen; vip comes with the front end's.
type event struct {
	stage string
	at    time.Time
	vip   string
}

func (l *lab) watchAnswer() (*watch, error) {
	ctx, cancel := context.WithCancel(context.Background())
	w := &watch{cancel: cancel, events: make(chan event, 1000), seen: map[string]time.Time{}}
	api, err := l.api()
	if err == nil {
		err = errors.Join(
			api.watch(ctx, "/api/v1/namespaces/default/pods", w.podEvents),
			api.watch(ctx, "/api/v1/namespaces/default/services", w.serviceEvents),
			api.watch(ctx, "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", w.sliceEvents),
			w.rules(ctx, filepath.Join("/run/packetwalk", l.name, "netns", nodeOf)))
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("watch the lab: %w", err)
	}
	return w, nil
}

// stop ends the watches. What they still send is dropped.
func (w *watch) stop() { w.cancel() }

// rules reads the kernel's notices in a node's namespace.
func (w *watch) rules(ctx context.Context, node string) error {
	cmd := exec.CommandContext(ctx, "nsenter", "--net="+node, "nft", "monitor", "new", "rules")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		w.ruleEvents(out)
		_ = cmd.Wait() // stopped by us
	}()
	return nil
}

func (w *watch) note(stage, vip string) {
	select {
	case w.events <- event{stage, time.Now(), vip}:
	default: // the reader is gone
	}
}

func (w *watch) podEvents(r io.Reader) {
	created, scheduled := 0, map[string]bool{}
	for d := json.NewDecoder(r); ; {
		var e struct {
			Type   string
			Object object
		}
		if d.Decode(&e) != nil {
			return
		}
		if e.Type == "ADDED" {
			if created++; created == 2 {
				w.note("pods created", "")
			}
		}
		if e.Object.Spec.NodeName != "" {
			if scheduled[e.Object.Metadata.Name] = true; len(scheduled) == 2 {
				w.note("pods scheduled", "")
			}
		}
		if e.Object.is("Ready") {
			w.note("a pod Ready", "")
		}
	}
}

func (w *watch) serviceEvents(r io.Reader) {
	for d := json.NewDecoder(r); ; {
		var e struct{ Object object }
		if d.Decode(&e) != nil {
			return
		}
		if in := e.Object.Status.LoadBalancer.Ingress; len(in) > 0 {
			w.note("front end known", in[0].IP)
		}
	}
}

func (w *watch) sliceEvents(r io.Reader) {
	for d := json.NewDecoder(r); ; {
		var e struct {
			Object struct {
				Metadata  struct{ Labels map[string]string }
				Endpoints []struct{ Conditions struct{ Ready bool } }
			}
		}
		if d.Decode(&e) != nil {
			return
		}
		for _, endpoint := range e.Object.Endpoints {
			if endpoint.Conditions.Ready && e.Object.Metadata.Labels["kubernetes.io/service-name"] == "whereami" {
				w.note("an endpoint ready", "")
			}
		}
	}
}

// whereamiRule is a translation to a pod's web server, as nft prints it.
var whereamiRule = regexp.MustCompile(`dnat to [0-9.]+:80\b`)

func (w *watch) ruleEvents(r io.Reader) {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		if whereamiRule.MatchString(lines.Text()) {
			w.note("rules on the node", "")
		}
	}
}

// frontEnd waits for the service's address.
func (w *watch) frontEnd() (string, error) {
	limit := time.After(time.Minute)
	for w.vip == "" {
		select {
		case e := <-w.events:
			w.take(e)
		case <-limit:
			return "", errors.New("the service has no front end after a minute")
		}
	}
	return w.vip, nil
}

func (w *watch) take(e event) {
	w.first(e.stage, e.at)
	if e.vip != "" {
		w.vip = e.vip
	}
}

func (w *watch) first(stage string, at time.Time) {
	if _, ok := w.seen[stage]; !ok && !at.IsZero() {
		w.seen[stage] = at
	}
}

// when a stage was first seen.
func (w *watch) when(stage string) (time.Time, bool) {
	for {
		select {
		case e := <-w.events:
			w.take(e)
			continue
		default:
		}
		at, ok := w.seen[stage]
		return at, ok
	}
}
