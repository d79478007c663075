package endpoint

import (
	"net/netip"
	"strings"
	"testing"
)

func TestEnds(t *testing.T) {
	v4, v6 := netip.MustParseAddr("10.0.159.58"), netip.MustParseAddr("fd00::1")
	for text, want := range map[string]End{
		"pod/whereami":                 {Kind: Pod, Name: "whereami"},
		"pod/kube-system/coredns-5:53": {Kind: Pod, Namespace: "kube-system", Name: "coredns-5", Port: 53},
		"svc/default/whereami:80":      {Kind: Service, Namespace: "default", Name: "whereami", Port: 80},
		"svc/kube-dns:dns-tcp":         {Kind: Service, Name: "kube-dns", PortName: "dns-tcp"},
		"deploy/shop/web:8080":         {Kind: Deployment, Namespace: "shop", Name: "web", Port: 8080},
		"sts/shop/db:5432":             {Kind: StatefulSet, Namespace: "shop", Name: "db", Port: 5432},
		"ds/agent":                     {Kind: DaemonSet, Name: "agent"},
		"job/a/backup-2":               {Kind: Job, Namespace: "a", Name: "backup-2"},
		"web.shop.svc.cluster.local":   {Kind: DNSName, Name: "web.shop.svc.cluster.local"},
		"web.shop.svc:http":            {Kind: DNSName, Name: "web.shop.svc", PortName: "http"},
		"ifconfig.co:443":              {Kind: DNSName, Name: "ifconfig.co", Port: 443},
		"node/aks-nodepool1-0:30064":   {Kind: Node, Name: "aks-nodepool1-0", Port: 30064},
		"vm/Jump_Host":                 {Kind: VM, Name: "Jump_Host"},
		"netns/web_1:80":               {Kind: NetNS, Name: "web_1", Port: 80},
		"internet":                     {Kind: Internet},
		"internet:443":                 {Kind: Internet, Port: 443},
		"internet/ifconfig.co":         {Kind: Internet, Name: "ifconfig.co"},
		"internet/ifconfig.co:80":      {Kind: Internet, Name: "ifconfig.co", Port: 80},
		"client":                       {Kind: HostName, Name: "client"},
		"Jump_Host:22":                 {Kind: HostName, Name: "Jump_Host", Port: 22},
		"10.0.159.58":                  {Kind: Address, Address: v4},
		"10.0.159.58:80":               {Kind: Address, Address: v4, Port: 80},
		"fd00::1":                      {Kind: Address, Address: v6},
		"[fd00::1]:80":                 {Kind: Address, Address: v6, Port: 80},
	} {
		got, err := Parse(text)
		if err != nil || got != want {
			t.Errorf("%s: got %+v, %v; want %+v", text, got, err, want)
		}
		if s := want.String(); s != text {
			t.Errorf("%+v: printed %s, want %s", want, s, text)
		}
	}
}

// TestOtherNames: kubectl's names of a kind are the same end.
func TestOtherNames(t *testing.T) {
	for text, want := range map[string]string{
		"service/x": "svc/x", "services/a/x:http": "svc/a/x:http", "pods/x:80": "pod/x:80", "po/x": "pod/x", "deployment/x": "deploy/x",
		"deployments/x": "deploy/x", "no/n1": "node/n1", "nodes/n1": "node/n1",
		"deployment.apps/web": "deploy/web", "deployments.v1.apps/a/web:80": "deploy/a/web:80", "service.v1./x:http": "svc/x:http", "vms/V": "vm/V",
		"statefulset/x": "sts/x", "statefulsets.apps/a/x": "sts/a/x", "daemonset/x:1": "ds/x:1", "daemonsets.v1.apps/x": "ds/x", "jobs/x": "job/x",
		"job.batch/a/x": "job/a/x", "jobs.v1.batch/x": "job/x",
	} {
		if got, err := Parse(text); err != nil || got.String() != want {
			t.Errorf("%s: %s, %v", text, got, err)
		}
	}
}

// TestOtherGroups: a resource of another group is another one.
func TestOtherGroups(t *testing.T) {
	for text, want := range map[string]string{
		"pod.apps/x": `there is no pod of the API group "apps"; want pod/[NAMESPACE/]NAME[:PORT]`, "deployment.extensions/x": `"extensions"`,
		"deployment./x": `API group ""`, "service.v2/x": `API group "v2"`, "statefulset.batch/x": `"batch"; want sts/`,
		"job.apps/x": `there is no job of the API group "apps"`, "replicaset.apps/x": "neither an address nor a named end",
		"vm.v1/x": "neither an address nor a named end",
	} {
		if got, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %s, %v; want %s", text, got, err, want)
		}
	}
}

func TestBadEndsSayWhatToWrite(t *testing.T) {
	for text, hint := range map[string]string{
		"":                   "want for example pod/NAME",
		"pod":                "want pod/[NAMESPACE/]NAME[:PORT]",
		"pod/":               "the name is empty; want pod/",
		"pod//x":             "the namespace is empty",
		"pod/a/b/c":          "too many parts; want pod/",
		"node/a/b":           "too many parts; want node/NAME[:PORT]",
		"pod/Whereami":       "capital letters",
		"pod/a_b":            `cannot have '_' there`,
		"pod/-a":             `cannot have '-' there`,
		"pod/x:http":         `bad port "http"; want a number from 1 to 65535`,
		"svc/x:ht.tp":        `bad port "ht.tp"; want a number from 1 to 65535, or the name of a service's port`,
		"svc/x:":             "bad port",
		"svc/x:-1":           "bad port",
		"10.0.0.256":         "neither an address",
		"a..b":               "neither an address",
		"web.shop.svc:70000": "bad port",
		"svc/x:0":            "bad port",
		"svc/x:70000":        "bad port",
		"10.0.0.1:080":       "bad port",
		"10.0.0.0/8":         "want one address",
		"http://10.0.0.1/":   "leave out the scheme",
		"[fd00::1]":          "write fd00::1",
		"fe80::1%eth0":       "write fe80::1",
		"::ffff:10.0.0.1":    "write 10.0.0.1",
		"whereami/x":         "neither an address nor a named end; want pod/",
		"client:http":        `bad port "http"`,
		"client:0":           "bad port",
		"[10.0.0.1]:80":      "neither an address",
		"internet/a/b":       "too many parts; want internet[/NAME]",
		"internet:":          "bad port",
		"10.0.0.1:80:90":     "neither an address",
		"pod/a:80/x":         "bad port",
		"10.0.159.58:+80":    "bad port",
		"node/\x00":          "cannot have",
		"pod/" + longName():  "longer than 253",
		"cronjob/default":    "neither an address",
		"sts":                "names no sts; want sts/[NAMESPACE/]NAME[:PORT]",
	} {
		_, err := Parse(text)
		if err == nil || !strings.Contains(err.Error(), hint) {
			t.Errorf("%q: got %v, want an error with %q", text, err, hint)
		}
	}
}

func longName() string { return strings.Repeat("a", 254) }

func FuzzParse(f *testing.F) {
	for _, s := range []string{"pod/a/b:1", "svc/x", "[fd00::1]:80", "10.0.0.1:80", "internet/a", "internet:5", "node/a.b", "vm/A_b", "client:80", "a.b.:c",
		"deploy/a/b:1", "svc/x:http", "ds.apps/a/b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		e, err := Parse(s)
		if err != nil {
			return
		}
		again, err := Parse(e.String())
		if err != nil || again != e {
			t.Fatalf("%q: %+v prints as %s, read again as %+v, %v", s, e, e, again, err)
		}
	})
}
