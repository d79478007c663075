{{/*
What would crash or have no effect, each as a sentence that names the value and says what to write. The schema has types, enumerations and
limits of numbers; it cannot explain a pattern.
*/}}

{{/* Adds .text to the list .bad.all. */}}
{{- define "packetwalk.bad" -}}
{{- $_ := set .bad "all" (append .bad.all .text) -}}
{{- end -}}

{{/* A range in CIDR notation as a JSON object: family (IPv4, IPv6, or empty where it is none), and hostBits where bits beyond its length are set. */}}
{{- define "packetwalk.range" -}}
{{- $range := toString . -}}
{{- $octet := "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])" -}}
{{- $parts := splitList "/" $range -}}
{{- $groups := list -}}
{{- $family := "" -}}
{{- $width := 8 -}}
{{- if regexMatch (printf `^(%s\.){3}%s/(3[0-2]|[12]?[0-9])$` $octet $octet) $range -}}
{{- $family = "IPv4" -}}
{{- range splitList "." (first $parts) }}{{ $groups = append $groups (int64 .) }}{{ end -}}
{{- else if regexMatch `^[0-9a-fA-F:]+/(12[0-8]|1[01][0-9]|[1-9]?[0-9])$` $range -}}
{{- $width = 16 -}}
{{- $halves := splitList "::" (first $parts) -}}
{{- $sides := list -}}
{{- $valid := le (len $halves) 2 -}}
{{- range $halves -}}
{{- $side := list -}}
{{- range (ternary (list) (splitList ":" .) (eq . "")) -}}
{{- if not (regexMatch `^[0-9a-fA-F]{1,4}$` .) }}{{ $valid = false }}{{ else }}{{ $side = append $side (int64 (printf "0x%s" .)) }}{{ end -}}
{{- end -}}
{{- $sides = append $sides $side -}}
{{- end -}}
{{- if $valid -}}
{{- $groups = first $sides -}}
{{- if eq (len $halves) 2 -}}
{{- $right := last $sides -}}
{{- $zeros := int (sub 8 (add (len $groups) (len $right))) -}}
{{- $valid = ge $zeros 1 -}}
{{- if $valid -}}
{{- range until $zeros }}{{ $groups = append $groups 0 }}{{ end -}}
{{- $groups = concat $groups $right -}}
{{- end -}}
{{- end -}}
{{- if and $valid (eq (len $groups) 8) }}{{ $family = "IPv6" }}{{ end -}}
{{- end -}}
{{- end -}}
{{- $hostBits := false -}}
{{- if $family -}}
{{- $length := int64 (last $parts) -}}
{{- $powers := list 1 2 4 8 16 32 64 128 256 512 1024 2048 4096 8192 16384 32768 65536 -}}
{{- range $i, $group := $groups -}}
{{- $free := min $width (max 0 (sub (mul (add1 $i) $width) $length)) -}}
{{- if ne 0 (int (mod $group (index $powers (int $free)))) }}{{ $hostBits = true }}{{ end -}}
{{- end -}}
{{- end -}}
{{- dict "family" $family "hostBits" $hostBits | toJson -}}
{{- end -}}

{{/* A list from a list, or from a string with commas. */}}
{{- define "packetwalk.list" -}}
{{- if kindIs "slice" . -}}
{{- toJson . -}}
{{- else -}}
{{- $all := list -}}
{{- range splitList "," (toString (default "" .)) }}{{ with trim . }}{{ $all = append $all . }}{{ end }}{{ end -}}
{{- toJson $all -}}
{{- end -}}
{{- end -}}

{{/* Checks that .value, of the name .name, is a duration of Go's, which are at most 292 years. */}}
{{- define "packetwalk.checkDuration" -}}
{{- $valid := regexMatch `^(0|([0-9]{1,15}(\.[0-9]{1,15})?(ms|s|m|h))+)$` (toString .value) -}}
{{- if or (not $valid) (gt (include "packetwalk.milliseconds" .value | float64) 9223372036854.0) -}}
{{- include "packetwalk.bad" (dict "bad" .bad "text" (printf "%s: %q is not a duration; write one such as 30s, 1h or 1h30m" .name (toString .value))) -}}
{{- end -}}
{{- end -}}

{{/* A duration in milliseconds. */}}
{{- define "packetwalk.milliseconds" -}}
{{- $sum := 0.0 -}}
{{- $units := dict "ms" 1.0 "s" 1000.0 "m" 60000.0 "h" 3600000.0 -}}
{{- range regexFindAll `[0-9]+(\.[0-9]+)?(ms|s|m|h)` (toString .) -1 -}}
{{- $sum = addf $sum (mulf (float64 (regexFind `^[0-9.]+` .)) (get $units (regexFind `[a-z]+$` .))) -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{/* Checks that .range, of the family .family or of none, is of one that ipFamilies has. */}}
{{- define "packetwalk.checkFamily" -}}
{{- if and .family .values.ipFamilies (not (has .family .values.ipFamilies)) -}}
{{- include "packetwalk.bad" (dict "bad" .bad "text" (printf "%s: %s has no effect without %s in ipFamilies" .name .range .family)) -}}
{{- end -}}
{{- end -}}

{{/* Checks .resources of the name .name. */}}
{{- define "packetwalk.checkResources" -}}
{{- $bad := .bad -}}
{{- $name := .name -}}
{{- range $kind, $of := pick .resources "requests" "limits" -}}
{{- range $resource, $quantity := $of -}}
{{- if not (regexMatch `^[0-9]+(\.[0-9]+)?(m|[kMGTPE]|[KMGTPE]i|[eE][0-9]+)?$` (toString $quantity)) -}}
{{- include "packetwalk.bad" (dict "bad" $bad "text" (printf "%s.%s.%s: %q is not a quantity; write one such as 100m or 64Mi" $name $kind $resource (toString $quantity))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Of the list .all those that .own does not have, and none that is empty, as JSON. */}}
{{- define "packetwalk.others" -}}
{{- $others := list -}}
{{- range .all }}{{ if and . (not (has . $.own)) }}{{ $others = append $others . }}{{ end }}{{ end -}}
{{- toJson $others -}}
{{- end -}}

{{- define "packetwalk.checkPod" -}}
{{- $bad := .bad -}}
{{- $name := .name -}}
{{- include "packetwalk.checkResources" (dict "bad" $bad "name" (printf "%s.resources" $name) "resources" (default dict .values.resources)) -}}
{{- $most := get (default dict (get .values.updateStrategy "rollingUpdate")) "maxUnavailable" -}}
{{- with $most -}}
{{- if not (regexMatch `^(100|[1-9][0-9]?)%$|^[1-9][0-9]*$` (toString .)) -}}
{{- include "packetwalk.bad" (dict "bad" $bad "text" (printf "%s.updateStrategy.rollingUpdate.maxUnavailable: %q; write a number of nodes of at least 1, or a percentage from 1%% to 100%%" $name (toString .))) -}}
{{- end -}}
{{- end -}}
{{- if eq (toString $most) "0" -}}
{{- include "packetwalk.bad" (dict "bad" $bad "text" (printf "%s.updateStrategy.rollingUpdate.maxUnavailable: 0 replaces no pod; write at least 1" $name)) -}}
{{- end -}}
{{- range $label, $_ := .values.podLabels -}}
{{- if hasPrefix "app.kubernetes.io/" $label -}}
{{- include "packetwalk.bad" (dict "bad" $bad "text" (printf "%s.podLabels: the chart writes the label %s itself" $name $label)) -}}
{{- end -}}
{{- end -}}
{{- $own := .own -}}
{{- $flags := splitList "\n" .flags -}}
{{- range .values.extraArgs -}}
{{- $flag := first (splitList "=" .) -}}
{{- if not (regexMatch `^--[a-z][a-z0-9-]*(=.*)?$` .) -}}
{{- include "packetwalk.bad" (dict "bad" $bad "text" (printf "%s.extraArgs: %q is not a flag; write one such as --watch-rules=false" $name .)) -}}
{{- else if has $flag $own -}}
{{- include "packetwalk.bad" (dict "bad" $bad "text" (printf "%s.extraArgs: the chart writes the flag %s itself" $name $flag)) -}}
{{- else if not (has $flag $flags) -}}
{{- include "packetwalk.bad" (dict "bad" $bad "text" (printf "%s.extraArgs: there is no flag %s that would have an effect here; there are %s" $name $flag (join ", " (include "packetwalk.others" (dict "all" $flags "own" $own) | fromJsonArray)))) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "packetwalk.checkServiceProxy" -}}
{{- $bad := .bad -}}
{{- $v := .values.serviceProxy -}}
{{- $c := default dict $v.config -}}
{{- if not $v.enabled -}}
{{- if $v.clusterCIDR -}}
{{- include "packetwalk.bad" (dict "bad" $bad "text" "serviceProxy.clusterCIDR: without effect, because serviceProxy.enabled is false") -}}
{{- end -}}
{{- end -}}
{{- $families := list -}}
{{- range include "packetwalk.list" $v.clusterCIDR | fromJsonArray -}}
{{- $range := include "packetwalk.range" . | fromJson -}}
{{- if not $range.family -}}
{{- include "packetwalk.bad" (dict "bad" $bad "text" (printf "serviceProxy.clusterCIDR: %q is not a range; write one such as 10.244.0.0/16" (toString .))) -}}
{{- else if has $range.family $families -}}
{{- include "packetwalk.bad" (dict "bad" $bad "text" (printf "serviceProxy.clusterCIDR: more than one range of %s; write at most one of each family" $range.family)) -}}
{{- end -}}
{{- include "packetwalk.checkFamily" (dict "bad" $bad "name" "serviceProxy.clusterCIDR" "range" . "family" $range.family "values" $.values) -}}
{{- $families = append $families $range.family -}}
{{- end -}}
{{- $mode := default "ClusterCIDR" (get $c "detectLocalMode") -}}
{{- if and $v.clusterCIDR (ne $mode "ClusterCIDR") -}}
{{- include "packetwalk.bad" (dict "bad" $bad "text" (printf "serviceProxy.clusterCIDR: without effect with detectLocalMode %s" $mode)) -}}
{{- end -}}
{{- range $field, $of := dict "bridgeInterface" "BridgeInterface" "interfaceNamePrefix" "InterfaceNamePrefix" -}}
{{- $set := get (default dict (get $c "detectLocal")) $field -}}
{{- if and $set (ne $mode $of) -}}
{{- include "packetwalk.bad" (dict "bad" $bad "text" (printf "serviceProxy.config.detectLocal.%s: without effect with detectLocalMode %s" $field $mode)) -}}
{{- else if and (not $set) (eq $mode $of) -}}
{{- include "packetwalk.bad" (dict "bad" $bad "text" (printf "serviceProxy.config.detectLocal.%s: missing; detectLocalMode %s needs it" $field $mode)) -}}
{{- else if and $set (not (regexMatch `^[^/\s]{1,15}$` $set)) -}}
{{- include "packetwalk.bad" (dict "bad" $bad "text" (printf "serviceProxy.config.detectLocal.%s: %q is not the name of an interface; write at most 15 characters without '/' and blanks" $field $set)) -}}
{{- end -}}
{{- end -}}
{{- $other := ternary "iptables" "nftables" (eq $v.backend "nftables") -}}
{{- if get $c $other -}}
{{- include "packetwalk.bad" (dict "bad" $bad "text" (printf "serviceProxy.config.%s: without effect with serviceProxy.backend %s" $other $v.backend)) -}}
{{- end -}}
{{- with get $c $v.backend -}}
{{- $section := printf "serviceProxy.config.%s" $v.backend -}}
{{- range $field, $value := pick . "syncPeriod" "minSyncPeriod" -}}
{{- include "packetwalk.checkDuration" (dict "bad" $bad "name" (printf "%s.%s" $section $field) "value" $value) -}}
{{- end -}}
{{- $most := include "packetwalk.milliseconds" (default "30s" (get . "syncPeriod")) | float64 -}}
{{- if gt (include "packetwalk.milliseconds" (default "0s" (get . "minSyncPeriod")) | float64) $most -}}
{{- include "packetwalk.bad" (dict "bad" $bad "text" (printf "%s.minSyncPeriod: longer than syncPeriod" $section)) -}}
{{- end -}}
{{- end -}}
{{- $addresses := default list (get $c "nodePortAddresses") -}}
{{- range $addresses -}}
{{- $family := (include "packetwalk.range" . | fromJson).family -}}
{{- include "packetwalk.checkFamily" (dict "bad" $bad "name" "serviceProxy.config.nodePortAddresses" "range" . "family" $family "values" $.values) -}}
{{- if and (not $family) (ne (toJson $addresses) `["primary"]`) -}}
{{- include "packetwalk.bad" (dict "bad" $bad "text" (printf "serviceProxy.config.nodePortAddresses: %q is not a range; write ranges such as 10.0.0.0/8, or primary alone" (toString .))) -}}
{{- end -}}
{{- end -}}
{{- range $field, $value := pick (default dict (get $c "conntrack")) "tcpEstablishedTimeout" "tcpCloseWaitTimeout" "udpTimeout" "udpStreamTimeout" -}}
{{- include "packetwalk.checkDuration" (dict "bad" $bad "name" (printf "serviceProxy.config.conntrack.%s" $field) "value" $value) -}}
{{- end -}}
{{- $conntrack := default dict (get $c "conntrack") -}}
{{- if and (get $conntrack "min") (eq (toString (get $conntrack "maxPerCore")) "0") -}}
{{- include "packetwalk.bad" (dict "bad" $bad "text" "serviceProxy.config.conntrack.min: without effect, because maxPerCore is 0, which leaves the kernel's limit as it is") -}}
{{- end -}}
{{- if not $v.privilegedInit -}}
{{- range $field, $value := $conntrack -}}
{{- if not (has (toString $value) (list "0" "0s" "false")) -}}
{{- include "packetwalk.bad" (dict "bad" $bad "text" (printf "serviceProxy.config.conntrack.%s: without effect, because serviceProxy.privilegedInit is false" $field)) -}}
{{- end -}}
{{- end -}}
{{- if get (default dict (get $c "iptables")) "localhostNodePorts" -}}
{{- include "packetwalk.bad" (dict "bad" $bad "text" "serviceProxy.config.iptables.localhostNodePorts: it needs serviceProxy.privilegedInit, which sets net.ipv4.conf.all.route_localnet") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "packetwalk.checkMasq" -}}
{{- $bad := .bad -}}
{{- $v := .values.ipMasqAgent -}}
{{- $c := default dict $v.config -}}
{{- if not $v.enabled -}}
{{- range $name, $value := pick $v "config" "configMaps" -}}
{{- if $value -}}
{{- include "packetwalk.bad" (dict "bad" $bad "text" (printf "ipMasqAgent.%s: without effect, because ipMasqAgent.enabled is false" $name)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $c $v.configMaps -}}
{{- include "packetwalk.bad" (dict "bad" $bad "text" "ipMasqAgent.config: not together with ipMasqAgent.configMaps, whose ConfigMaps are read as they are; write the configuration into one of them") -}}
{{- end -}}
{{- if eq $v.format "v2" -}}
{{- range $name, $_ := pick $c "resyncInterval" "cidrLimit" -}}
{{- include "packetwalk.bad" (dict "bad" $bad "text" (printf "ipMasqAgent.config.%s: without effect with ipMasqAgent.format v2" $name)) -}}
{{- end -}}
{{- end -}}
{{- with get $c "resyncInterval" -}}
{{- include "packetwalk.checkDuration" (dict "bad" $bad "name" "ipMasqAgent.config.resyncInterval" "value" .) -}}
{{- if lt (include "packetwalk.milliseconds" . | float64) 1000.0 -}}
{{- include "packetwalk.bad" (dict "bad" $bad "text" "ipMasqAgent.config.resyncInterval: less than 1s") -}}
{{- end -}}
{{- end -}}
{{- $ranges := default list (get $c "nonMasqueradeCIDRs") -}}
{{- $most := int (default 64 (get $c "cidrLimit")) -}}
{{- if gt (len $ranges) $most -}}
{{- include "packetwalk.bad" (dict "bad" $bad "text" (printf "ipMasqAgent.config.nonMasqueradeCIDRs: %d ranges; the most is %d" (len $ranges) $most)) -}}
{{- end -}}
{{- $six := or .values.serviceProxy.enabled (has "IPv6" .values.ipFamilies) -}}
{{- range $ranges -}}
{{- $range := include "packetwalk.range" . | fromJson -}}
{{- if not $range.family -}}
{{- include "packetwalk.bad" (dict "bad" $bad "text" (printf "ipMasqAgent.config.nonMasqueradeCIDRs: %q is not a range; write one such as 10.0.0.0/8" (toString .))) -}}
{{- else if $range.hostBits -}}
{{- include "packetwalk.bad" (dict "bad" $bad "text" (printf "ipMasqAgent.config.nonMasqueradeCIDRs: %q has bits set beyond its length; write the first address of the range" (toString .))) -}}
{{- else if and (eq $range.family "IPv6") (not $six) -}}
{{- include "packetwalk.bad" (dict "bad" $bad "text" (printf "ipMasqAgent.config.nonMasqueradeCIDRs: %s has no effect without IPv6 in ipFamilies" .)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "packetwalk.checkMetrics" -}}
{{- $bad := .bad -}}
{{- $m := .values.metrics -}}
{{- range $name := list "serviceMonitor" "prometheusRule" -}}
{{- if and (get $m $name).enabled (not $m.enabled) -}}
{{- include "packetwalk.bad" (dict "bad" $bad "text" (printf "metrics.%s.enabled: it needs metrics.enabled, without which no other machine can read the metrics" $name)) -}}
{{- end -}}
{{- end -}}
{{- if and $m.enabled (not .nodeOn) -}}
{{- include "packetwalk.bad" (dict "bad" $bad "text" "metrics.enabled: without effect, because no part with metrics is enabled") -}}
{{- end -}}
{{- range $port, $whose := dict "10248" "the kubelet's health" "10250" "the kubelet's API" "10256" "the service proxy's health" -}}
{{- if eq $port (toString (int $m.port)) -}}
{{- include "packetwalk.bad" (dict "bad" $bad "text" (printf "metrics.port: %s is the port of %s; choose another one" $port $whose)) -}}
{{- end -}}
{{- end -}}
{{- if not (regexMatch `^([0-9]+(ms|s|m|h|d|w|y))+$` $m.serviceMonitor.interval) -}}
{{- include "packetwalk.bad" (dict "bad" $bad "text" (printf "metrics.serviceMonitor.interval: %q is not a duration of Prometheus's; write one such as 30s" $m.serviceMonitor.interval)) -}}
{{- end -}}
{{- end -}}

{{/* Checks all values of .root. */}}
{{- define "packetwalk.check" -}}
{{- $bad := .bad -}}
{{- $v := .root.Values -}}
{{- $on := include "packetwalk.nodeOn" .root -}}
{{- if $v.apiServer -}}
{{- $host := regexReplaceAll `^https://|:[0-9]+$` $v.apiServer "" -}}
{{- $port := trimPrefix ":" (regexFind `:[0-9]{1,5}$` $v.apiServer) -}}
{{- $valid := and (hasPrefix "https://" $v.apiServer) (or (not $port) (and (ge (int $port) 1) (le (int $port) 65535))) -}}
{{- if hasPrefix "[" $host -}}
{{- $valid = and $valid (regexMatch `^\[[^\[\]]+\]$` $host) (include "packetwalk.range" (printf "%s/128" (trimAll "[]" $host)) | fromJson).family -}}
{{- else if regexMatch `^[0-9.]+$` $host -}}
{{- $valid = and $valid (include "packetwalk.range" (printf "%s/32" $host) | fromJson).family -}}
{{- else -}}
{{- $valid = and $valid (regexMatch `^([A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?\.)*[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?\.?$` $host) -}}
{{- end -}}
{{- if not $valid -}}
{{- include "packetwalk.bad" (dict "bad" $bad "text" (printf "apiServer: %q is not https://HOST:PORT; write the scheme https and no path, not even a slash at the end" $v.apiServer)) -}}
{{- end -}}
{{- end -}}
{{- if or (not (regexMatch `^[a-z0-9]+([._-]+[a-z0-9]+)*(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*$` $v.image.repository)) (regexMatch `^[^/]*:[^/]*$` $v.image.repository) -}}
{{- include "packetwalk.bad" (dict "bad" $bad "text" (printf "image.repository: %q is not the name of an image; write one such as registry.example/packetwalk, with the tag in image.tag and a digest in image.digest" $v.image.repository)) -}}
{{- end -}}
{{- if not (regexMatch `^([A-Za-z0-9_][A-Za-z0-9._-]{0,127})?$` $v.image.tag) -}}
{{- include "packetwalk.bad" (dict "bad" $bad "text" (printf "image.tag: %q is not a tag; write letters, digits, '_', '.' and '-'" $v.image.tag)) -}}
{{- end -}}
{{- if not (regexMatch `^(sha256:[0-9a-f]{64})?$` $v.image.digest) -}}
{{- include "packetwalk.bad" (dict "bad" $bad "text" (printf "image.digest: %q is not a digest; write sha256: and 64 hexadecimal digits" $v.image.digest)) -}}
{{- end -}}
{{- if not (regexMatch `^([a-z]([-a-z0-9]*[a-z0-9])?)?$` $v.nameOverride) -}}
{{- include "packetwalk.bad" (dict "bad" $bad "text" (printf "nameOverride: %q cannot begin the names of objects; write a lower-case letter, then lower-case letters, digits and '-'" $v.nameOverride)) -}}
{{- end -}}
{{- include "packetwalk.checkServiceProxy" (dict "bad" $bad "values" $v) -}}
{{- include "packetwalk.checkMasq" (dict "bad" $bad "values" $v) -}}
{{- include "packetwalk.checkMetrics" (dict "bad" $bad "values" $v "nodeOn" $on) -}}
{{- include "packetwalk.checkPod" (dict "bad" $bad "name" "node" "values" $v.node "flags" (.root.Files.Get "files/node-flags.txt") "own" (list "--hostname-override" "--node-name" "--iptables-variant" "--config" "--cleanup-on-delete"
    "--strict-config" "--pod" "--service-proxy" "--metrics-bind-address" "--kubeconfig" "--ip-masq-agent" "--ip-masq-format" "--ip-masq-configmaps" "--ip-masq-keep-config"
    "--docker-bridge-cidr" "--ip-families" "--cleanup" "--init-only" "--write-config-to" "--version")) -}}
{{- end -}}
