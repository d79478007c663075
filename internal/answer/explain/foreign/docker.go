package foreign

import "packetwalk.dev/internal/model/attribution"

// docker describes the rules of Docker's bridge driver, with iptables until 28 (chains DOCKER-ISOLATION-…) and since (DOCKER-FORWARD and
// on), and with nftables since 29 (moby, daemon/libnetwork/drivers/bridge; its rules by case in
// integration/network/bridge/iptablesdoc/generated).
func docker() attribution.Writer {
	const (
		published = "Docker: port published by the container {end}"
		isolated  = "Docker: from one of its networks to another"
		apart     = "Docker: containers of one network may not reach each other (inter-container communication is off)"
		swarm     = "Docker: port {port}, published by a service of a swarm"
	)
	filter := func(name, purpose string, rules ...attribution.Line) attribution.Chain {
		return attribution.Chain{Table: "filter", Name: name, For: purpose, Rules: rules}
	}
	nft := func(name, purpose string, rules ...attribution.Line) attribution.Chain {
		return attribution.Chain{Table: "docker-bridges", Name: name, For: purpose, Rules: rules}
	}
	established := attribution.Line{Text: "--ctstate RELATED,ESTABLISHED", For: "Docker: of a connection that was let through before"}
	return attribution.Writer{
		Name: "Docker", File: "internal/answer/explain/foreign/docker.go",
		Words: map[string]string{"bridge": `docker[0-9]+|br-[0-9a-f]{12}|docker_gwbridge`, "port": "[0-9]+", "direction": "[io]ifname",
			"link": `[^\s-]\S*`, "hook": "PREROUTING|OUTPUT|POSTROUTING", "container": `[0-9.]+/32`},
		Chains: []attribution.Chain{
			filter("FORWARD", "where Docker begins",
				attribution.Line{To: "DOCKER-USER", For: "Docker: rules of the machine's owner, before its own"},
				attribution.Line{To: "DOCKER-FORWARD", For: "Docker: its containers' networks"},
				attribution.Line{To: "DOCKER-ISOLATION-STAGE-1", For: "Docker: is it from one of its networks to another?"},
				attribution.Line{To: "DOCKER", For: "Docker: is it for a port that a container publishes?"},
				attribution.Line{To: "ACCEPT", Text: "-o {bridge} -m conntrack --ctstate RELATED,ESTABLISHED", For: established.For},
				attribution.Line{To: "ACCEPT", Text: "-i {bridge} ! -o {bridge}", For: "Docker: its containers reach what is outside their network"},
				attribution.Line{To: "ACCEPT", Text: "-i {bridge} -o {other}", For: "Docker: containers of one network reach each other"}),
			filter("DOCKER-USER", "rules of the machine's owner", attribution.Line{To: "RETURN", Text: "-j RETURN",
				For: "Docker: nothing more of the machine's owner"}),
			filter("DOCKER-FORWARD", "Docker's networks",
				attribution.Line{To: "DOCKER-INGRESS", For: "Docker: is it for a port that a service of a swarm publishes?"},
				attribution.Line{To: "DOCKER-CT", For: "Docker: is it of a connection that was let through before?"},
				attribution.Line{To: "DOCKER-INTERNAL", For: "Docker: networks without a way out"},
				attribution.Line{To: "DOCKER-BRIDGE", For: "Docker: is it for one of its networks?"},
				attribution.Line{To: "DROP", Text: "-i {link} -o {other}", For: apart},
				attribution.Line{To: "ACCEPT", Text: "-i {link} -o {other}", For: "Docker: containers of one network reach each other"},
				attribution.Line{To: "ACCEPT", Text: "-i {link}", For: "Docker: its containers reach what is outside their network"}),
			filter("DOCKER-INGRESS", "ports that services of a swarm publish",
				attribution.Line{To: "ACCEPT", Text: "--dport {port}", For: swarm},
				attribution.Line{To: "ACCEPT", Text: "--sport {port} -m conntrack --ctstate RELATED,ESTABLISHED", For: established.For},
				attribution.Line{To: "RETURN", For: "Docker: no port that a service of a swarm publishes"}),
			filter("DOCKER-CT", "connections that were let through before", established),
			filter("DOCKER-INTERNAL", "networks without a way out",
				attribution.Line{To: "DROP", For: "Docker: a network without a way out"}),
			filter("DOCKER-BRIDGE", "finds the network that a packet is for",
				attribution.Line{To: "DOCKER", Text: "-o {link}", For: "Docker: is it for a port that a container publishes?"}),
			filter("DOCKER", "ports that containers publish",
				attribution.Line{To: "ACCEPT", Text: "-d {end} *--dport {port}", For: published},
				attribution.Line{To: "ACCEPT", Text: "-o {link} -p icmp", For: "Docker: ICMP to a network in mode routed"},
				attribution.Line{To: "ACCEPT", Text: "! -i {link} -o {other}", For: "Docker: a network in mode nat-unprotected: every port is open"},
				attribution.Line{To: "DROP", Text: "-o {link}", For: "Docker: a container's port that is not published"}),
			filter("DOCKER-ISOLATION-STAGE-1", "keeps Docker's networks apart: from one of them",
				attribution.Line{To: "DOCKER-ISOLATION-STAGE-2", Text: "-i {link} *", For: "Docker: from one of its networks, to which?"},
				attribution.Line{To: "RETURN", For: "Docker: from none of its networks to another"}),
			filter("DOCKER-ISOLATION-STAGE-2", "keeps Docker's networks apart: to another one",
				attribution.Line{To: "DROP", For: isolated}, attribution.Line{To: "RETURN", For: "Docker: from none of its networks to another"}),
			{Table: "nat", Name: "{hook}", For: "where Docker begins", Rules: []attribution.Line{
				{To: "DOCKER-INGRESS", For: "Docker: is it for a port that a service of a swarm publishes?"},
				{To: "DOCKER", For: "Docker: is it for a port that a container publishes?"},
				{To: "MASQUERADE", Text: "-s {net} ! -o {bridge}", For: "Docker: its containers' network"},
				{To: "SNAT", Text: "-s {net} ! -o {bridge} -j SNAT --to-source {address}",
					For: "Docker: its containers' network leaves with {address}, as its option host_ipv4 says"},
				{To: "MASQUERADE", Text: "-s {container} -d {container} *--dport {port}",
					For: "Docker: a container that reaches itself through the port that it publishes"},
				{To: "MASQUERADE", Text: "-o {bridge} -m addrtype --src-type LOCAL", For: "Docker: from the machine itself to a container"},
				{To: "SNAT", Text: "-o {bridge} -m addrtype --src-type LOCAL -j SNAT --to-source {address}",
					For: "Docker: from the machine itself to a container, with {address}, as the network's option host_ipv4 says"},
			}},
			{Table: "raw", Name: "PREROUTING", For: "keeps others from containers' own addresses", Rules: []attribution.Line{
				{To: "DROP", Text: "-d {container} ! -i {bridge}", For: "Docker: block access from outside to container addresses"},
				{To: "DROP", Text: "-d 127.0.0.1/32 ! -i lo *--dport {port}",
					For: "Docker: port {port} is published on 127.0.0.1: only for the machine itself"},
			}},
			{Table: "nat", Name: "DOCKER-INGRESS", For: "ports that services of a swarm publish", Rules: []attribution.Line{
				{To: "DNAT", Text: "--dport {port} -j DNAT --to-destination {end}", For: swarm + ", through {end}, the swarm's ingress network"},
				{To: "RETURN", For: "Docker: no port that a service of a swarm publishes"},
			}},
			{Table: "nat", Name: "DOCKER", For: "ports that containers publish", Rules: []attribution.Line{
				{To: "RETURN", Text: "-i {link}", For: "Docker: from a container, which is not led back"},
				{To: "DNAT", Text: "--to-destination {end}", For: published},
			}},
			nft("filter-FORWARD", "finds Docker's network that a packet is from or for",
				attribution.Line{Text: "{direction} vmap *", For: "Docker: is it from or for one of its networks?"}),
			nft("nat-{hook}", "where Docker begins",
				attribution.Line{To: "nat-prerouting-and-output", For: "Docker: is it for a port that a container publishes?"},
				attribution.Line{Text: "oifname vmap *", For: "Docker: is it for one of its networks?"}),
			nft("nat-prerouting-and-output", "ports that containers publish",
				attribution.Line{Text: "dnat to {end} *", For: published}),
			nft("raw-PREROUTING", "keeps others from containers' own addresses",
				attribution.Line{Comment: "DROP DIRECT ACCESS", For: "Docker: block access from outside to container addresses"}),
			nft("filter-forward-in__{link}", "what comes in to one of Docker's networks",
				attribution.Line{Text: "ct state established,related *", For: established.For},
				attribution.Line{Comment: "ICC", For: "Docker: containers of one network reach each other"},
				attribution.Line{Comment: "UNPUBLISHED PORT DROP", For: "Docker: a container's port that is not published"},
				attribution.Line{To: "accept", Text: "ip daddr {end} *", For: published}),
			nft("nat-postrouting-out__{link}", "what leaves one of Docker's networks",
				attribution.Line{Comment: "MASQUERADE", For: "Docker: its containers' network"}),
		},
	}
}
