#!/bin/sh
# The main job on real input, shown step by step: a cluster of today in this machine's kernel, an application, a request from the internet, and
# what each place on the way shows of it. Ends with a status other than 0 as soon as something is not as it should be.
# Safe to run again: a lab "demo" that is up is used as it is. usage: scripts/demo.sh
set -eu
cd "$(dirname "$0")/.."
if [ "$(id -u)" -ne 0 ]; then
	exec scripts/as-root "$0" "$@"
fi
PATH=$PATH:/usr/sbin:/sbin

lab=demo
sudo=
[ -z "${SUDO_UID-}" ] || sudo='sudo ' # what the user types has to become root again
example=examples/overlay
pw() { # pw COMMAND ARGS…: packetwalk on this lab
	command=$1
	shift
	bin/packetwalk "$command" --name "$lab" "$@"
}
step() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
{ [ -t 1 ] && [ -z "${NO_COLOR-}" ]; } || step() { printf '\n== %s\n' "$*"; }
show() { # show COMMAND…: print what a user would type, and run it
	echo "\$ packetwalk $*"
	pw "$@"
}
fail() {
	echo "demo: $*" >&2
	echo "demo: the lab is still there: look at '${sudo}bin/packetwalk status --name $lab', or remove it with '${sudo}bin/packetwalk down --name $lab'" >&2
	exit 1
}
duration() { [ "$1" -lt 60 ] || printf '%s min ' $(($1 / 60)); echo "$(($1 % 60)) s"; } # SECONDS
# expect TEXT PATTERN WHAT: what a step showed must match an extended regular expression
expect() {
	printf '%s\n' "$1" | grep -Eq -- "$2" || fail "$3 is not as expected: no line matches $2"
}

step "a cluster in this machine's kernel, as \"az aks create\" makes it"
if bin/packetwalk status --name "$lab" >/dev/null 2>&1; then
	echo "lab $lab is up already"
else
	bin/packetwalk up --name "$lab" || fail "up failed"
fi

step "an application that answers with addresses, and pods to ask from"
show kubectl apply -f "$example/app.yaml"
for pods in deployment/whereami daemonset/client; do
	pw kubectl rollout status "$pods" --timeout=120s || fail "the pods are not ready"
done

vip=
for _ in $(seq 60); do
	vip=$(pw kubectl get service whereami -o 'jsonpath={.status.loadBalancer.ingress[0].ip}')
	[ -z "$vip" ] || break
	sleep 1
done
[ -n "$vip" ] || fail "the service has no public address after a minute"
node=$(pw kubectl get nodes -o 'jsonpath={.items[0].metadata.name}')
nodeport=$(pw kubectl get service whereami -o 'jsonpath={.spec.ports[0].nodePort}')

step "services, endpoints and pods: the pods have addresses of a range that no VNet has, a /24 of it on each node"
show kubectl get service
show kubectl get endpointslices -l kubernetes.io/service-name=whereami
pods=$(show kubectl get pods -l app=whereami -o wide)
echo "$pods"
expect "$pods" '10\.244\.[01]\.[0-9]+' "the pods' addresses"

step "requests from the internet host \"client\" to $vip"
answer=
for _ in $(seq 30); do
	answer=$(pw ssh client -- curl -s --max-time 2 "http://$vip") && [ -n "$answer" ] && break
	answer=
	sleep 1
done
[ -n "$answer" ] || fail "no answer from http://$vip within 30 attempts"
for _ in 1 2 3 4 5; do
	show ssh client -- curl -s --max-time 5 "http://$vip" || fail "a request was not answered"
done

step "the node's rules: from the front end to a pod"
rules=$(pw ssh "$node" -- iptables-save | grep whereami) || fail "the node has no rules for whereami"
echo "\$ packetwalk ssh $node -- iptables-save | grep whereami"
echo "$rules"
expect "$rules" "-d $vip/32 .*--dport 80 " "the rule of the front end"
expect "$rules" "--to-destination 10\.244\.[01]\.[0-9]+:80" "the translation to a pod"

step "the node's connections: client to front end; the answer from a pod to the node, which had put its own address in"
for node in $(pw kubectl get nodes -o 'jsonpath={.items[*].metadata.name}'); do # the load balancer chose one, or both
	connections=$(show ssh "$node" -- conntrack -L -d "$vip" 2>&1)
	case $connections in *"dst=$vip "*) break ;; esac
done
echo "$connections"
expect "$connections" "src=198\.51\.100\.10 dst=$vip .*dport=80 src=10\.244\.[01]\.[0-9]+ dst=10\.224\.0\.[45] " "the connection"

step "Azure's view: the load balancer's rule (floating IP) and its probe on the node port $nodeport"
group=$(pw az aks list --query '[0].nodeResourceGroup' -o tsv)
lb=$(pw az network lb list -g "$group" -o tsv --query '[0].name')
rule=$(show az network lb rule list -g "$group" --lb-name "$lb" -o table)
echo "$rule"
expect "$rule" '^80 +True +True +True +80 +4 +Default ' "the load balancer's rule"
probe=$(show az network lb probe list -g "$group" --lb-name "$lb" -o table)
echo "$probe"
expect "$probe" "^5 .* 2 +$nodeport +2 +Tcp " "the load balancer's probe"

step "the walk: machine by machine, with the rules that decided, and beside each step what the kernel's own trace says"
walk=$(show walk --live --from internet/client --to svc/whereami) || { echo "$walk"; fail "the walk and the kernel part"; }
echo "$walk"
expect "$walk" '^kernel: ([0-9]+) of \1 steps agree' "the proof"
expect "$walk" '^the destination sees 10\.224\.0\.[45]:[0-9]+, because nat KUBE-POSTROUTING' "the walk's answer"

step "the other way: the address that a server in a peered VNet sees of a pod"
walk=$(show walk --live --from ds/client --to vm/server:80) || { echo "$walk"; fail "the walk and the kernel part"; }
echo "$walk"
expect "$walk" '^kernel: ([0-9]+) of \1 steps agree' "the proof"
expect "$walk" '^the destination sees 10\.224\.0\.[45]:[0-9]+, because nat IP-MASQ-AGENT' "the walk's answer"

step "all as it should be"
[ -z "${SINCE-}" ] || echo "from 'make demo' to this answer, with all that had to be installed and built: $(duration $(($(date +%s) - SINCE)))"
cat <<TXT
What to try next (the lab stays up):
  ${sudo}bin/packetwalk shell --name $lab            a shell in which these are the lab's:
    ssh client curl -s http://$vip
    ssh $node                      on the node: ip route, iptables-save, tcpdump -ni eth0 port 80
    kubectl patch service whereami -p '{"spec":{"externalTrafficPolicy":"Local"}}'
                                                      look at the walk, conntrack and the probe again
    kubectl scale deployment/whereami --replicas=5
    packetwalk walk --live --from vm/vm --to deploy/whereami:80
    packetwalk status -o wide
  ${sudo}bin/packetwalk down --name $lab             remove everything
"packetwalk tour overlay" shows what has changed since the articles, "packetwalk tour azure-cni" goes through the first of them.
TXT
