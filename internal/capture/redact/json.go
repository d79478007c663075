package redact

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"packetwalk.dev/internal/capture"
)

// decodeNumbers reads JSON and keeps its numbers to the digit.
func decodeNumbers(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	return d.Decode(into)
}

// plainKeys are those of iproute2's JSON, and of this package's own, whose texts are words of the kernel. Texts under keys that are neither
// here nor in jsonKeys are left out.
var plainKeys = wordSet(`flags qdisc operstate linkmode link_type inet6_addr_gen_mode info_kind info_slave_kind state family scope protocol
	type table pref action nh_family dst_mode mode vlan_protocol group_fwd_mask group_fwd_mask_str fwmark fwmask ipproto tos dscp proto
	stp_state what dir attach hook role filter handle parent`)

// jsonKeys say what the texts under a key name.
var jsonKeys = map[string]func(*redactor, string) string{
	"ifname": (*redactor).link, "dev": (*redactor).link, "link": (*redactor).link, "master": (*redactor).link, "iif": (*redactor).link,
	"oif": (*redactor).link, "label": (*redactor).link, "peerLink": (*redactor).link, "phys_dev": (*redactor).link,
	"viaIf":   (*redactor).link,
	"group":   (*redactor).group,
	"kind":    (*redactor).qdisc,
	"ifalias": (*redactor).alias, "list": (*redactor).alias,
	"host": (*redactor).hostName, "process": (*redactor).process, "name": (*redactor).process, "cgroup": (*redactor).alias,
	"address": (*redactor).line, "broadcast": (*redactor).line, "local": (*redactor).line, "local6": (*redactor).line,
	"anycast": (*redactor).line,
	"dst":     (*redactor).line,
	"src":     (*redactor).line, "from": (*redactor).line, "gateway": (*redactor).line, "prefsrc": (*redactor).line,
	"lladdr": (*redactor).line,
	"mac":    (*redactor).line, "via": (*redactor).line, "remote": (*redactor).line, "multicast": (*redactor).line,
}

func (r *redactor) link(s string) string  { return r.names.link(s) }
func (r *redactor) alias(s string) string { return r.names.free(s) }

// group replaces the name of a link's group, and the address of a VXLAN's.
func (r *redactor) group(s string) string {
	if _, err := netip.ParseAddr(s); err == nil {
		return r.line(s)
	}
	if s == "default" {
		return s
	}
	return r.names.free(s)
}
func (r *redactor) hostName(s string) string {
	if strings.Trim(s, "0123456789abcdef.:") == "" { // of a gateway of the other family: {"family":…,"host":ADDRESS}
		return r.line(s)
	}
	return r.names.host(s)
}

// otherQdiscs are the kernel's kinds that are not in capture.QdiscKinds.
var otherQdiscs = wordSet(`blackhole cbs choke drr dualpi2 etf gred hfsc netem plug qfq red sfb taprio tbf`)

// qdisc replaces the name of a qdisc that is a BPF program.
func (r *redactor) qdisc(s string) string {
	if _, ok := capture.QdiscKinds[s]; ok || otherQdiscs[s] {
		return s
	}
	return r.names.free(s)
}

func (r *redactor) process(s string) string { return r.names.process(s) }

// json redacts what iproute2 prints with -j, or this package's own.
func (r *redactor) json(data []byte) ([]byte, error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return data, nil
	}
	var list []any
	if err := decodeNumbers(data, &list); err != nil {
		return nil, fmt.Errorf("it is no JSON array")
	}
	for i := range list {
		list[i] = r.tree("", list[i])
	}
	return json.Marshal(list)
}

// tree replaces what is under a key; nil leaves it out.
func (r *redactor) tree(key string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		if name, ok := v["ifname"].(string); ok && r.learning {
			r.names.links[name] = true
		}
		out := map[string]any{}
		for k, inner := range v {
			if changed := r.tree(k, inner); changed != nil {
				out[k] = changed
			}
		}
		r.split(v, out, "src", "srclen")
		r.split(v, out, "dst", "dstlen")
		return out
	case []any:
		kept := []any{}
		for _, inner := range v {
			if changed := r.tree(key, inner); changed != nil {
				kept = append(kept, changed)
			}
		}
		return kept
	case string:
		switch how := jsonKeys[key]; {
		case key == "table":
			return r.names.routingTable(v)
		case how != nil:
			return how(r, v)
		case plainKeys[key]:
			return v
		}
		return nil
	}
	return v
}

// split replaces a prefix whose length stands under a key of its own.
func (r *redactor) split(v, out map[string]any, addr, length string) {
	a, ok := v[addr].(string)
	n, isNumber := v[length].(json.Number)
	if !ok || !isNumber || r.learning {
		return
	}
	if p, err := netip.ParsePrefix(a + "/" + n.String()); err == nil {
		out[addr] = r.addresses.prefix(p).Addr().String()
	}
}

// object replaces what a Kubernetes object names, in place. The lists are trimmed to the shapes of objects.go. Of a pod's labels it keeps
// those with the keys that NetworkPolicies select by.
func (r *redactor) object(file string, o map[string]any, selectors map[string]bool) {
	meta, _ := o["metadata"].(map[string]any)
	if meta == nil {
		return
	}
	kind := map[string]string{"pods.json": "pod", "services.json": "svc", "nodes.json": "node", "ippools.json": "pool",
		"endpointslices.json": "slice", capture.NetworkPoliciesFile: "netpol", capture.RuntimeClassesFile: "class"}[file]
	labels := map[string]any{}
	old, _ := meta["labels"].(map[string]any)
	if service, ok := old[capture.ServiceLabel].(string); ok {
		labels[capture.ServiceLabel] = r.names.of("svc", service)
	}
	for key, value := range old {
		if file == podsFile && selectors[key] {
			labels[r.labelKey(key)] = r.labelValue(value)
		}
	}
	if hash, ok := r.owners(meta["ownerReferences"], old[hashLabel]); ok {
		labels[hashLabel] = hash
	}
	delete(meta, "labels")
	if len(labels) > 0 {
		meta["labels"] = labels
	}
	if name, ok := meta["name"].(string); ok && kind != "" {
		meta["name"] = r.names.of(kind, name)
	}
	if namespace, ok := meta["namespace"].(string); ok {
		meta["namespace"] = r.names.of("ns", namespace)
	}
	if spec, ok := o["spec"].(map[string]any); ok && file == capture.NetworkPoliciesFile {
		r.selector(spec["podSelector"])
		return
	}
	for k, v := range o {
		if k != "metadata" {
			o[k] = r.objectTree(k, v)
		}
	}
}

const podsFile = "pods.json"

// hashLabel is the label by whose value a ReplicaSet is called after its Deployment (apps/v1, DefaultDeploymentUniqueLabelKey).
const hashLabel = "pod-template-hash"

// ownerKinds are what names of a pod's owners are replaced as, by their kinds.
var ownerKinds = map[string]string{"ReplicaSet": "rs", "StatefulSet": "sts", "DaemonSet": "ds", "Job": "job"}

// owners replaces a pod's owners, in place. A ReplicaSet of a Deployment stays one: its name begins with the Deployment's, and ends with
// the hash. owners returns what replaced that, and whether there is such an owner.
func (r *redactor) owners(references, hash any) (replaced any, ofDeployment bool) {
	list, _ := references.([]any)
	for i := range list {
		owner, _ := list[i].(map[string]any)
		kind, _ := owner["kind"].(string)
		name, _ := owner["name"].(string)
		group, _ := owner["apiVersion"].(string)
		text, _ := hash.(string)
		deployment, found := strings.CutSuffix(name, "-"+text)
		switch {
		case ownerKinds[kind] == "" || group != "apps/v1" && group != "batch/v1":
			owner["kind"], owner["apiVersion"], owner["name"] = "", "", "" // of an extension, whose kind may tell whose it is
		case kind == "ReplicaSet" && text != "" && found:
			replaced, ofDeployment = r.labelValue(text), true
			owner["name"] = fmt.Sprint(r.names.of("deploy", deployment), "-", replaced)
		default:
			owner["name"] = r.names.of(ownerKinds[kind], name)
		}
	}
	return replaced, ofDeployment
}

// selectorKeys returns the labels' keys that a list of NetworkPolicies selects pods by; none of a list that cannot be read.
func selectorKeys(policies []byte) map[string]bool {
	keys := map[string]bool{}
	objects, err := capture.ReadObjects(map[string][]byte{capture.NetworkPoliciesFile: policies})
	if err != nil {
		return keys
	}
	for _, p := range objects.NetworkPolicies {
		for _, r := range p.Selector {
			keys[r.Key] = true
		}
	}
	return keys
}

// selector replaces the labels of a policy's podSelector, in place, as object does those of pods.
func (r *redactor) selector(podSelector any) {
	selector, _ := podSelector.(map[string]any)
	if labels, ok := selector["matchLabels"].(map[string]any); ok {
		changed := map[string]any{}
		for key, value := range labels {
			changed[r.labelKey(key)] = r.labelValue(value)
		}
		selector["matchLabels"] = changed
	}
	expressions, _ := selector["matchExpressions"].([]any)
	for _, e := range expressions {
		e, _ := e.(map[string]any)
		if key, ok := e["key"].(string); ok {
			e["key"] = r.labelKey(key)
		}
		values, _ := e["values"].([]any)
		for i := range values {
			values[i] = r.labelValue(values[i])
		}
	}
}

func (r *redactor) labelKey(key string) string { return r.names.of("label", key) }

func (r *redactor) labelValue(value any) any {
	text, _ := value.(string)
	return r.names.of("value", text)
}

// objectTree replaces the names and addresses below a field of an object.
func (r *redactor) objectTree(key string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		if kind, _ := v["type"].(string); kind == "Hostname" || strings.HasSuffix(kind, "DNS") { // a node's address that is a name
			v["address"] = r.names.of("node", fmt.Sprint(v["address"]))
			return v
		}
		for k, inner := range v {
			v[k] = r.objectTree(k, inner)
		}
		return v
	case []any:
		for i := range v {
			v[i] = r.objectTree(key, v[i])
		}
		return v
	case string:
		switch key {
		case "nodeName":
			return r.names.of("node", v)
		case "runtimeClassName":
			return r.names.of("class", v)
		case "handler": // of a RuntimeClass
			if capture.UsesNodeNetwork(v) {
				return v
			}
			return r.names.of("handler", v)
		case "providerID": // names the subscription and the machine
			return ""
		case "name": // of a port
			return r.names.of("port", v)
		}
		return r.line(v)
	}
	return v
}

// nft replaces what is in nft's JSON (libnftables-json(5)): what chains, sets and tables are called, links, addresses, comments. The other
// words are the language's.
func (r *redactor) nft(data []byte) ([]byte, error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return data, nil
	}
	var doc map[string]any
	if err := decodeNumbers(data, &doc); err != nil {
		return nil, fmt.Errorf("it is no JSON object")
	}
	list, _ := doc["nftables"].([]any)
	for i := range list {
		list[i] = r.nftTree("", "", list[i], nftWords)
	}
	return json.Marshal(doc)
}

// nftLinkKeys are the fields of meta whose values are names of links.
var nftLinkKeys = wordSet("iifname oifname ibrname obrname iif oif sdifname")

// nftNameKeys are the fields of meta, ct, socket, rt and osf whose values are numbers or names that the machine gives.
var nftNameKeys = wordSet("skuid skgid iifgroup oifgroup cgroup cgroupv2 helper label secmark classid rtclassid name")

// nftElements say what the elements of a set of some datatype are.
var nftElements = map[string]nftValues{"ifname": nftLinks, "iface_index": nftLinks, "uid": nftNames, "gid": nftNames, "devgroup": nftNames,
	"cgroupsv2": nftNames, "realm": nftNames, "ct_label": nftNames}

// nftReferences are the statements of a rule that can name a stateful object of the table.
var nftReferences = wordSet("counter quota limit secmark synproxy") // and "ct helper", "ct timeout", "ct expectation"

// nftValues says what the texts below a key of nft's JSON are.
type nftValues int

const (
	nftWords nftValues = iota // of the language, and addresses
	nftLinks
	nftNames // or numbers
)

// nftValuesOf returns what the values are that an expression is compared with.
func nftValuesOf(left map[string]any) nftValues {
	for kind, inner := range left {
		fields, _ := inner.(map[string]any)
		key, _ := fields["key"].(string)
		switch {
		case kind == "meta" && nftLinkKeys[key]:
			return nftLinks
		case nftNameKeys[key]:
			return nftNames
		}
	}
	return nftWords
}

// nftKinds are the objects in which the same key means different things.
var nftKinds = wordSet("table chain set map rule flowtable log xt")

// nftTree replaces what is below a key of an object of some kind.
func (r *redactor) nftTree(kind, key string, v any, values nftValues) any {
	switch v := v.(type) {
	case map[string]any:
		if prefix, ok := v["prefix"].(map[string]any); ok {
			if p, err := netip.ParsePrefix(fmt.Sprint(prefix["addr"], "/", prefix["len"])); err == nil {
				if r.learning {
					return v
				}
				prefix["addr"] = r.addresses.prefix(p).Addr().String()
				return v
			}
		}
		if ends, ok := v["range"].([]any); ok && len(ends) == 2 {
			return r.nftRange(v, ends, values)
		}
		if left, ok := v["left"].(map[string]any); ok {
			v["left"], v["right"] = r.nftTree(kind, "left", left, nftWords), r.nftTree(kind, "right", v["right"], nftValuesOf(left))
			return v
		}
		if datatype, ok := v["type"].(string); ok && kind == "set" && v["elem"] != nil {
			values = nftElements[datatype]
		}
		for k, inner := range v {
			_, object := inner.(map[string]any)
			if nftKinds[k] && kind == "" || object && (k == "log" || k == "xt") {
				v[k] = r.nftTree(k, k, inner, nftWords)
			} else if k == "dev" {
				v[k] = r.nftTree(kind, k, inner, nftLinks)
			} else {
				v[k] = r.nftTree(kind, k, inner, values)
			}
		}
		return v
	case []any:
		for i := range v {
			v[i] = r.nftTree(kind, key, v[i], values)
		}
		return v
	case string:
		return r.nftText(kind, key, v, values)
	}
	return v
}

func (r *redactor) nftRange(v map[string]any, ends []any, values nftValues) any {
	low, err := netip.ParseAddr(fmt.Sprint(ends[0]))
	high, err2 := netip.ParseAddr(fmt.Sprint(ends[1]))
	if err != nil || err2 != nil {
		v["range"] = r.nftTree("", "range", ends, values)
		return v
	}
	if r.learning {
		r.addresses.keepSpan(low, high)
		return v
	}
	low, high = r.addresses.span(low, high)
	v["range"] = []any{low.String(), high.String()}
	return v
}

func (r *redactor) nftText(kind, key, s string, values nftValues) string {
	name, isSet := strings.CutPrefix(s, "@")
	switch {
	case key == "family" || key == "hook" || key == "policy" || key == "op" || key == "type" && kind != "":
		return s
	case isSet:
		return "@" + r.names.set(name)
	case values == nftLinks && (kind != "set" || key == "elem" || key == "val" || key == "range"):
		return r.pattern(s, "*")
	case values == nftNames && (kind != "set" || key == "elem" || key == "val" || key == "range"):
		if s == "default" || s == "root" || publicHelpers.MatchString(s) {
			return s
		}
		return r.names.free(s)
	case nftReferences[key], strings.HasPrefix(key, "ct "):
		return r.names.free(s)
	case key == "table" || kind == "table" && key == "name":
		return r.names.table(s)
	case key == "chain" || key == "target" || kind == "chain" && key == "name":
		return r.names.chain(s)
	case key == "comment":
		return r.comment(s)
	case kind == "xt":
		return s
	case (kind == "set" || kind == "map" || kind == "flowtable") && key == "name":
		return r.names.set(s)
	case kind == "log" && key == "prefix", key == "name":
		return r.names.free(s)
	case r.names.isLink(s):
		return r.names.link(s)
	}
	return r.line(s)
}
