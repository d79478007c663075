package foreign

import "packetwalk.dev/internal/model/attribution"

// istio returns what Istio writes into a pod: its init container or CNI plugin for a sidecar (istio/istio, tools/istio-iptables), and its
// CNI agent for ztunnel in ambient mode (cni/pkg/iptables). The proxy runs as user and group 1337 (0x539) and opens new connections: a rule
// that redirects to it also decides which source the other end sees.
func istio() attribution.Writer {
	chain := func(table, name, purpose string, rules ...attribution.Line) attribution.Chain {
		return attribution.Chain{Table: table, Name: name, For: purpose, Rules: rules}
	}
	const (
		begins   = "where Istio begins"
		incoming = "Istio: does the sidecar take this incoming connection?"
		itself   = "Istio: from the sidecar to the application: not redirected"
		excluded = "Istio: port {port} is excluded: not redirected"
		ambient  = "Istio ambient: does ztunnel take this packet?"
		outgoing = "Istio: does its proxy take this outgoing connection?"
		zones    = "Istio: DNS in conntrack zone {zone}, so that queries of the application and of the proxy stay apart"
		restored = "connmark {mark} set earlier in the connection, back on the packet"
	)
	probe := attribution.Line{To: "ACCEPT", Text: "-{side} 169.254.7.127/32 *", For: "Istio ambient: kubelet's probe: not redirected"}
	return attribution.Writer{
		Name: "Istio", File: "internal/answer/explain/foreign/istio.go",
		Words: map[string]string{"port": "[0-9]+", "proxy": "[0-9]+", "kind": "[ug]id", "side": "[sd]", "mark": `0x[0-9a-f]+`,
			"loopback": `127\.0\.0\.1/32|::1/128`, "bound": `127\.0\.0\.6/32|::6/128`},
		Chains: []attribution.Chain{
			chain("nat", "PREROUTING", begins, attribution.Line{To: "ISTIO_INBOUND", For: incoming}, attribution.Line{To: "ISTIO_PRERT", For: ambient}),
			chain("nat", "OUTPUT", begins, attribution.Line{To: "ISTIO_OUTPUT", For: outgoing}),
			chain("nat", "POSTROUTING", begins, attribution.Line{To: "ISTIO_POSTRT", For: "Istio ambient: is it kubelet's probe of a pod?"}),
			chain("nat", "ISTIO_INBOUND", "incoming connections that the sidecar takes",
				attribution.Line{To: "RETURN", Text: "--dport 15008", For: "Istio: port 15008 receives tunnels (HBONE): not redirected"},
				attribution.Line{To: "RETURN", Text: "--dport {port}", For: excluded},
				attribution.Line{To: "ISTIO_IN_REDIRECT", Text: "--dport {port}", For: "Istio: port {port} goes to the sidecar"},
				attribution.Line{To: "ISTIO_IN_REDIRECT", For: "Istio: every port that is not excluded goes to the sidecar"}),
			chain("nat", "ISTIO_IN_REDIRECT", "redirects to the sidecar's inbound port",
				attribution.Line{To: "REDIRECT", Text: "--to-ports {proxy}", For: "Istio: to the sidecar's inbound port {proxy}; the sidecar opens a " +
					"new connection, in which the application sees the source 127.0.0.6, not the client"}),
			chain("nat", "ISTIO_REDIRECT", "redirects to the sidecar's outbound port",
				attribution.Line{To: "REDIRECT", Text: "--to-ports {proxy}", For: "Istio: to the sidecar's outbound port {proxy}; the sidecar opens a " +
					"new connection from this pod's address to an endpoint that it chooses"}),
			chain("nat", "ISTIO_OUTPUT", "outgoing connections that the proxy takes",
				attribution.Line{To: "RETURN", Text: "-s {bound} -o lo", For: itself},
				attribution.Line{To: "ISTIO_IN_REDIRECT", Text: "-o lo *", For: "Istio: the sidecar calls its own pod: back in, as an incoming connection"},
				attribution.Line{To: "RETURN", Text: "-o lo *! --{kind}-owner *", For: "Istio: the application calls its own pod: not redirected"},
				attribution.Line{To: "RETURN", Text: "-m owner ! --gid-owner *", For: "Istio: not of a group whose connections are redirected"},
				attribution.Line{To: "RETURN", Text: "--{kind}-owner 1337", For: "Istio: the sidecar's own connection ({kind} 1337): not redirected"},
				attribution.Line{To: "RETURN", Text: "--{kind}-owner {id}", For: "Istio: {kind} {id} is the sidecar's or excluded: not redirected"},
				attribution.Line{To: "RETURN", Text: "-d {loopback}", For: "Istio: to localhost: not redirected"},
				attribution.Line{To: "RETURN", Text: "--dport {port}", For: excluded},
				attribution.Line{To: "RETURN", Text: "-d {range}", For: "Istio: {range} is excluded: not redirected"},
				attribution.Line{To: "ISTIO_OUTPUT_DNS", For: "Istio: is it a DNS query?"},
				attribution.Line{To: "ISTIO_REDIRECT", Text: "--dport {port}", For: "Istio: port {port} goes to the sidecar"},
				attribution.Line{To: "ISTIO_REDIRECT", Text: "-d {range}", For: "Istio: {range} goes to the sidecar"},
				attribution.Line{To: "ISTIO_REDIRECT", For: "Istio: every connection that is not excluded goes to the sidecar"},
				probe,
				attribution.Line{To: "REDIRECT", Text: "--dport 53 *--to-ports {proxy}", For: "Istio ambient: DNS query: ztunnel answers on port {proxy}"},
				attribution.Line{To: "ACCEPT", Text: "--mark 0x111/0xfff", For: "Istio ambient: an answer to ztunnel's connection: not redirected"},
				attribution.Line{To: "ACCEPT", Text: "-o lo", For: "Istio ambient: the pod calls itself: not redirected"},
				attribution.Line{To: "REDIRECT", Text: "! --mark 0x539/0xfff -j REDIRECT --to-ports {proxy}", For: "Istio ambient: to ztunnel's outbound " +
					"port {proxy}; ztunnel opens a new connection from this pod's address"}),
			chain("nat", "ISTIO_OUTPUT_DNS", "DNS queries that the sidecar answers",
				attribution.Line{To: "REDIRECT", Text: "--to-ports {proxy}", For: "Istio: DNS query: the sidecar's agent answers on port {proxy}"}),
			chain("nat", "ISTIO_PRERT", "incoming connections that ztunnel takes", probe,
				attribution.Line{To: "REDIRECT", Text: "-i {link} *--to-ports {proxy}", For: "Istio ambient: from the virtual interface {link}: to ztunnel's " +
					"outbound port {proxy}"},
				attribution.Line{To: "RETURN", Text: "-i {link} *", For: "Istio ambient: from the virtual interface {link}"},
				attribution.Line{To: "REDIRECT", Text: "--to-ports {proxy}", For: "Istio ambient: to ztunnel's inbound port {proxy}; ztunnel opens a new " +
					"connection to the application, whose source ztunnel chooses"}),
			chain("nat", "ISTIO_POSTRT", "kubelet's probes of pods",
				attribution.Line{To: "SNAT", Text: "--to-source {address}", For: "Istio ambient: kubelet's probe: with the source {address}, which pods do " +
					"not redirect to ztunnel"}),
			chain("mangle", "PREROUTING", begins,
				attribution.Line{To: "ISTIO_INBOUND", For: incoming},
				attribution.Line{To: "ISTIO_DROP", For: "Istio: of no connection that conntrack knows"},
				attribution.Line{To: "ISTIO_PRERT", For: ambient},
				attribution.Line{To: "CONNMARK", Text: "--mark 0x539 -j CONNMARK --save-mark *",
					For: "Istio: taken by the sidecar (TPROXY): the connection gets the mark, too"}),
			chain("mangle", "OUTPUT", begins,
				attribution.Line{To: "RETURN", Text: "-o lo -p tcp -m mark --mark 0x539", For: "Istio: the sidecar calls the application (TPROXY)"},
				attribution.Line{To: "MARK", Text: "-o lo *--{kind}-owner {id} -j MARK --set-xmark 0x53a/*",
					For: "Istio: the sidecar calls its own pod (TPROXY): marked, so that it may come in"},
				attribution.Line{To: "CONNMARK", Text: "--mark 0x539 -j CONNMARK --restore-mark *",
					For: "Istio: answer to a connection that the sidecar took (TPROXY): marked, so that it returns there"},
				attribution.Line{To: "ISTIO_OUTPUT", For: ambient}),
			chain("mangle", "ISTIO_INBOUND", "incoming connections that the sidecar takes without translation",
				attribution.Line{To: "RETURN", Text: "-m mark --mark 0x539", For: "Istio: from the sidecar, with the client's address: not taken again"},
				attribution.Line{To: "RETURN", Text: "-s {bound} -i lo", For: itself},
				attribution.Line{To: "RETURN", Text: "-i lo *! --mark 0x53a", For: "Istio: the application calls its own pod: not taken"},
				attribution.Line{To: "RETURN", Text: "--dport {port}", For: excluded},
				attribution.Line{To: "ISTIO_DIVERT", For: "Istio: of a connection that the sidecar took before"},
				attribution.Line{To: "ISTIO_TPROXY", For: "Istio: goes to the sidecar"}),
			chain("mangle", "ISTIO_DIVERT", "packets of connections that the sidecar has",
				attribution.Line{To: "MARK", For: "Istio: marked, to be routed to the sidecar"},
				attribution.Line{To: "ACCEPT", For: "Istio: to the sidecar that has the connection"}),
			chain("mangle", "ISTIO_TPROXY", "gives connections to the sidecar without translation",
				attribution.Line{To: "TPROXY", Text: "--on-port {proxy} *", For: "Istio: to the sidecar's inbound port {proxy}; the sidecar opens a new " +
					"connection, in which the application sees the client's own address"}),
			chain("mangle", "ISTIO_DROP", "what is dropped", attribution.Line{To: "DROP", For: "Istio: of no connection that conntrack knows"}),
			chain("mangle", "ISTIO_PRERT", "ztunnel's connections",
				attribution.Line{To: "CONNMARK", Text: "--set-xmark {mark}/*", For: "Istio ambient: opened by ztunnel: connmark {mark}"}),
			chain("mangle", "ISTIO_OUTPUT", "answers to ztunnel's connections",
				attribution.Line{To: "CONNMARK", Text: "--mark {mark}/{mask} *", For: "Istio ambient: " + restored}),
			chain("raw", "PREROUTING", begins,
				attribution.Line{To: "ISTIO_INBOUND", For: "Istio: is it an answer of DNS?"}, attribution.Line{To: "ISTIO_PRERT", For: ambient}),
			chain("raw", "OUTPUT", begins,
				attribution.Line{To: "ISTIO_OUTPUT_DNS", For: "Istio: is it a DNS query?"}, attribution.Line{To: "ISTIO_OUTPUT", For: ambient}),
			chain("raw", "ISTIO_{name}", "keeps the connections of DNS apart", attribution.Line{To: "CT", Text: "--zone {zone}", For: zones}),
		},
	}
}
