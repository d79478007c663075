package capture

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestMasqConfigMaps: the ConfigMaps of an ip-masq-agent are those that its pods name, and no pod names other things.
func TestMasqConfigMaps(t *testing.T) {
	pod := func(namespace, labels, spec string) string {
		return fmt.Sprintf(`{"metadata":{"namespace":%q,"name":"p","labels":{%s}},"spec":{"hostNetwork":true,%s}}`, namespace, labels, spec)
	}
	args := func(words string) string {
		return `"containers":[{"image":"packetwalk","command":["packetwalk-node"],"args":[` + words + `]}]`
	}
	volumes := `"volumes":[{"configMap":{"name":"mine"}},{"projected":{"sources":[{"configMap":{"name":"a"}},{"secret":{"name":"s"}},` +
		`{"configMap":{"name":"b"}}]}},{"hostPath":{"path":"/run"}}]`
	many := make([]string, 100)
	for i := range many {
		many[i] = fmt.Sprintf("c%d", i)
	}
	for name, test := range map[string]struct{ pod, want string }{
		"our chart's":            {pod("shop", "", args(`"--ip-masq-agent","--ip-masq-configmaps=pw-ip-masq"`)), "pw-ip-masq"},
		"two words, two names":   {pod("shop", "", args(`"--ip-masq-configmaps","x, y.z"`)), "x y.z"},
		"by its label":           {pod("kube-system", `"k8s-app":"azure-ip-masq-agent"`, volumes), "mine a b"},
		"by its image":           {pod("kube-system", "", `"containers":[{"image":"r.example/x/ip-masq-agent-v2:v0.1"}],`+volumes), "mine a b"},
		"in another namespace":   {pod("shop", `"k8s-app":"ip-masq-agent"`, volumes), ""},
		"another pod":            {pod("kube-system", `"k8s-app":"kube-dns"`, volumes), ""},
		"no host network":        {strings.Replace(pod("shop", "", args(`"--ip-masq-configmaps=x"`)), "true", "false", 1), ""},
		"what is no name":        {pod("shop", "", args(`"--ip-masq-configmaps=../secrets/x,.,A,ok"`)), "ok"},
		"more than there can be": {pod("shop", "", args(`"--ip-masq-configmaps=`+strings.Join(many, ",")+`"`)), strings.Join(many[:16], " ")},
	} {
		got := MasqConfigMaps(nil, []byte(`{"items":[`+test.pod+`,`+test.pod+`]}`))
		if !slices.Equal(got, strings.Fields(test.want)) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// TestConfigMapKeys: of a ConfigMap a capture keeps the keys that are the ip-masq-agent's.
func TestConfigMapKeys(t *testing.T) {
	list := ObjectLists[slices.IndexFunc(ObjectLists, func(l ObjectList) bool { return l.File == "configmaps.json" })]
	kept, err := list.Trim([]byte(`{"metadata":{"name":"c"},"data":{"ip-masq-agent":"x","ip-masq-agent-reconciled":"y","password":"z"}}`))
	if err != nil || len(kept) != 1 || string(kept[0]) != `{"metadata":{"name":"c"},"data":{"ip-masq-agent":"x","ip-masq-agent-reconciled":"y"}}` {
		t.Errorf("%s, %v", kept, err)
	}
}
