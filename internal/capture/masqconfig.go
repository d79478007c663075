package capture

import (
	"encoding/json"
	"path"
	"slices"
	"strings"
)

// agentPod is what tells of a pod of an ip-masq-agent which ConfigMaps it reads.
type agentPod struct {
	Metadata metaObject
	Spec     struct {
		HostNetwork bool
		Containers  []struct {
			Image         string
			Command, Args []string
		}
		Volumes []struct {
			configMapSource
			Projected struct{ Sources []configMapSource }
		}
	}
}

type configMapSource struct{ ConfigMap struct{ Name string } }

// maxMasqConfigMaps bounds how many ConfigMaps pods can name: any user may create a pod.
const maxMasqConfigMaps = 16

// masqFlag is the flag of packetwalk-node that names its ConfigMaps, and masqAgent is in the names of all other ip-masq-agents.
const (
	masqFlag  = "--ip-masq-configmaps"
	masqAgent = "ip-masq-agent"
)

// MasqConfigMaps adds the names of the ConfigMaps of kube-system that ip-masq-agents read, by a list of pods: those in the arguments of
// packetwalk-node, and those in the volumes of pods of other agents.
func MasqConfigMaps(names []string, pods []byte) []string {
	var list struct{ Items []agentPod }
	if json.Unmarshal(pods, &list) != nil {
		return names // the reader of pods says so
	}
	for i := range list.Items {
		for _, name := range list.Items[i].masqConfigMaps() {
			if len(names) < maxMasqConfigMaps && isObjectName(name) && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

func (p *agentPod) masqConfigMaps() (names []string) {
	if !p.Spec.HostNetwork { // it cannot write a node's rules
		return nil
	}
	for _, c := range p.Spec.Containers {
		words := slices.Concat(c.Command, c.Args)
		for i, word := range words {
			value, ok := strings.CutPrefix(word, masqFlag+"=")
			if word == masqFlag && i+1 < len(words) {
				value, ok = words[i+1], true
			}
			if ok {
				names = append(names, strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ' ' })...)
			}
		}
	}
	if len(names) > 0 || p.Metadata.Namespace != masqNamespace || !p.isMasqAgent() {
		return names
	}
	for _, v := range p.Spec.Volumes {
		for _, source := range append(v.Projected.Sources, v.configMapSource) {
			names = append(names, source.ConfigMap.Name)
		}
	}
	return names
}

// isMasqAgent reports whether a pod is an ip-masq-agent's, by its labels or by a container's image or command.
func (p *agentPod) isMasqAgent() bool {
	for _, key := range []string{"k8s-app", "app", "app.kubernetes.io/name", "component"} {
		if strings.Contains(p.Metadata.Labels[key], masqAgent) {
			return true
		}
	}
	for _, c := range p.Spec.Containers {
		if strings.Contains(path.Base(c.Image), masqAgent) || len(c.Command) > 0 && strings.Contains(path.Base(c.Command[0]), masqAgent) {
			return true
		}
	}
	return false
}

// isObjectName reports whether a text can be an object's name (RFC 1123 subdomain), and so stand in a path of the API.
func isObjectName(s string) bool {
	return s != "" && len(s) <= 253 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-.") == "" && strings.Trim(s, ".") != ""
}
