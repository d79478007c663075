package nodes

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"packetwalk.dev/internal/base/pause"
	"packetwalk.dev/internal/base/termsafe"
)

// What felix logs of objects that the API has accepted (felix/calc/validation_filter.go, libcalico-go/lib/backend/syncersv1/updateprocessors
// and watchersyncer), and before it ends (felix/iptables/table.go has a program's words).
var (
	felixRefused = regexp.MustCompile(`Validation failed; treating as missing error=(.*?) key=Policy\((?:tier=[^,)]*, )?name=(?:([a-z0-9-]+)/)?([a-z0-9][a-z0-9.-]*)\)`)
	felixInvalid = regexp.MustCompile(`Invalid CIDR CIDR="([^"]*)" error=(.*?) networkSet="(?:([a-z0-9-]+)/)?([a-z0-9][a-z0-9.-]*)"`)
	felixFailed  = regexp.MustCompile(`\[(?:PANIC|FATAL)\]\S* felix/\S+ \d+: (.*)`)
	felixOutput  = regexp.MustCompile(`errorOutput="((?:[^"\\]|\\.)*)"`)
	felixBlocked = regexp.MustCompile(`Failed to perform list of current data during resync ListRoot="\S*/(\w+)" error=(.*)`)
)

// A refusedPolicy holds what felix says of a policy or a network set, or of all objects of a kind: one that it cannot read keeps it from
// reading the others.
type refusedPolicy struct {
	list            string // "globalnetworkpolicies"; "" for one object
	set             bool   // a network set
	namespace, name string // felix's for a policy; without a namespace it is global
	words           string
}

// felixRefusal reads a line of felix's log.
func felixRefusal(line string) (refusedPolicy, bool) {
	if m := felixRefused.FindStringSubmatch(line); m != nil {
		return refusedPolicy{namespace: m[2], name: m[3], words: termsafe.Line(m[1])}, true
	}
	if m := felixInvalid.FindStringSubmatch(line); m != nil {
		return refusedPolicy{set: true, namespace: m[3], name: m[4], words: termsafe.Line(m[1] + ": " + m[2])}, true
	}
	if m := felixBlocked.FindStringSubmatch(line); m != nil {
		return refusedPolicy{list: m[1], words: termsafe.Line(m[2])}, true
	}
	return refusedPolicy{}, false
}

// object returns the API's path and kind of what was refused.
func (r refusedPolicy) object() (path, version, kind string) {
	const calico = "crd.projectcalico.org/v1"
	name, ofKubernetes := strings.CutPrefix(r.name, "knp.default.")
	switch {
	case r.set && r.namespace == "":
		return "/apis/" + calico + "/globalnetworksets/" + r.name, calico, "GlobalNetworkSet"
	case r.set:
		return "/apis/" + calico + "/namespaces/" + r.namespace + "/networksets/" + r.name, calico, "NetworkSet"
	case r.namespace == "":
		return "/apis/" + calico + "/globalnetworkpolicies/" + r.name, calico, "GlobalNetworkPolicy"
	case ofKubernetes:
		return "/apis/networking.k8s.io/v1/namespaces/" + r.namespace + "/networkpolicies/" + name, "networking.k8s.io/v1", "NetworkPolicy"
	}
	return "/apis/" + calico + "/namespaces/" + r.namespace + "/networkpolicies/" + r.name, calico, "NetworkPolicy"
}

// tail reads what is added to a log.
type tail struct {
	path   string
	offset int64
}

// maxTail is how much of a log is read at once, bytes.
const maxTail = 1 << 20

// lines returns the whole lines that were added since the last call. A log that has become shorter was set aside, and begins anew.
func (t *tail) lines() ([]string, error) {
	file, err := os.Open(t.path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() < t.offset {
		t.offset = 0
	}
	text, err := io.ReadAll(io.NewSectionReader(file, t.offset, maxTail))
	end := bytes.LastIndexByte(text, '\n') + 1
	if end == 0 && len(text) == maxTail {
		end = maxTail // a line that is too long
	}
	t.offset += int64(end)
	return slices.Collect(strings.Lines(string(text[:end]))), err
}

// blockedFor is how long a list that felix could not read counts as unreadable; it tries once a second.
const blockedFor = 5 * time.Second

// failedFor is how long the end of felix counts as its state; it is started again after at most half a minute.
const failedFor = time.Minute

// felixWords holds what felix said, and when.
type felixWords struct {
	words string
	at    time.Time
}

// followFelix records events on policies that felix refuses, and notes lists that it cannot read, until ctx ends. All nodes' felix say the
// same, so that one is followed.
func (p *PolicyEngine) followFelix(ctx context.Context) error {
	broadcast := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcast.Shutdown()
	broadcast.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: p.nodes.API.Client.CoreV1().Events("")})
	events := broadcast.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "calico-felix"})
	var log tail
	for pause.For(ctx, time.Second) {
		i := slices.IndexFunc(p.nodes.List(), func(n *Node) bool { return p.nodes.felixOf(n) != nil })
		if i < 0 {
			continue
		}
		node := p.nodes.List()[i].Name
		if path := p.nodes.Dir.Log(node + ".calico-felix"); path != log.path {
			log = tail{path: path}
			if info, err := os.Stat(path); err == nil {
				log.offset = info.Size()
			}
		}
		lines, err := log.lines()
		if err != nil {
			return err
		}
		for _, line := range lines {
			if failure := p.noteFailure(line); failure != "" {
				events.Event(&corev1.ObjectReference{Kind: "Node", Name: node, UID: types.UID(node)}, corev1.EventTypeWarning, "FelixFailed",
					"calico-felix ended: "+failure)
			}
			r, ok := felixRefusal(line)
			switch {
			case !ok:
			case r.list != "":
				p.mu.Lock()
				p.blocked[r.list] = felixWords{r.words, time.Now()}
				p.mu.Unlock()
			default:
				if err := p.record(ctx, events, r); err != nil {
					return err
				}
			}
		}
	}
	return ctx.Err()
}

// record makes an event of a refused policy, where the policy is still there.
func (p *PolicyEngine) record(ctx context.Context, events record.EventRecorder, r refusedPolicy) error {
	path, version, kind := r.object()
	text, err := p.nodes.API.REST().Get().AbsPath(path).Do(ctx).Raw()
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	var o metav1.PartialObjectMetadata
	if err := json.Unmarshal(text, &o); err != nil {
		return err
	}
	events.Eventf(&corev1.ObjectReference{APIVersion: version, Kind: kind, Namespace: o.Namespace, Name: o.Name, UID: o.UID},
		corev1.EventTypeWarning, "PolicyRefused", "calico-felix does not enforce it: %s", r.words)
	return nil
}

// unreadable returns the lists that felix cannot read now, as problems.
func (p *PolicyEngine) unreadable() (problems []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, list := range slices.Sorted(maps.Keys(p.blocked)) {
		if b := p.blocked[list]; time.Since(b.at) < blockedFor {
			problems = append(problems, fmt.Sprintf("calico-felix cannot read the %s.crd.projectcalico.org, so that no change of them has an effect: %s",
				list, b.words))
		}
	}
	return problems
}

// noteFailure notes, and returns, the last words of a felix that ends, with those of the program that it gives up on; "" for other lines.
func (p *PolicyEngine) noteFailure(line string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := felixOutput.FindStringSubmatch(line); m != nil {
		p.output = termsafe.Line(m[1])
	}
	m := felixFailed.FindStringSubmatch(line)
	if m == nil {
		return ""
	}
	words := termsafe.Line(m[1])
	if p.output != "" {
		words += ": " + p.output
	}
	p.failure, p.output = felixWords{words, time.Now()}, ""
	return words
}

// lastFailure returns why felix has ended lately, as a problem; "" where it has not.
func (p *PolicyEngine) lastFailure() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failure.words == "" || time.Since(p.failure.at) > failedFor {
		return ""
	}
	return "calico-felix ended, and no change of a policy has an effect until it runs: " + p.failure.words
}
