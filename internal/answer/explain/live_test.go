package explain

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/walk"
)

// TestLiveConclusion checks that the conclusion says no more than the kernel showed, where walk and kernel part or the end is unknown.
func TestLiveConclusion(t *testing.T) {
	const pod = "pod/default/nginx-75fdcbbc74-zkvhc"
	for name, c := range map[string]struct {
		walked func(*testing.T) example
		live   Live
		want   []string // the conclusion, and what it depends on
		not    string
		srcIP  string
	}{
		"agrees": {toVM, Live{Receiver: "vm/testvm", Received: tcp("10.13.76.5:41000", "10.13.1.4:80").Tuple, Answer: "answered"},
			[]string{"the destination sees the sender's own address, 10.13.76.5:41000, because no rule translates it"}, "answered", "10.13.76.5"},
		"port seen": {byMasquerade, Live{Source: &walk.End{Kind: walk.Left, Host: "node/n", Packet: tcp("10.13.76.4:40321", "10.13.1.4:5432")}},
			[]string{"as far as the state was read, the destination sees 10.13.76.4:40321, because nat POSTROUTING 1: MASQUERADE"}, "1024-65535", "10.13.76.4"},
		"port seen elsewhere": {byMasquerade, Live{Source: &walk.End{Kind: walk.Left, Host: "node/m", Packet: tcp("10.13.76.4:40321", "10.13.1.4:5432")}},
			[]string{"as far as the state was read, the destination sees 10.13.76.4:1024-65535, because nat POSTROUTING 1: MASQUERADE"}, "40321", "10.13.76.4"},
		"other source": {toVM, Live{Parted: "node/aks-0", Receiver: "vm/testvm", Received: tcp("10.13.76.4:1025", "10.13.1.4:80").Tuple, Answer: "answered"},
			[]string{"the receiver saw 10.13.76.4:1025 (vm testvm)", "- why is unknown: walk and kernel part on node aks-0", "- answered"},
			"the destination sees", "10.13.76.4"},
		"not received": {toVM, Live{Parted: "node/aks-0", Missed: []string{"vm/testvm"}, Answer: "no answer"},
			[]string{"it is unknown what the destination sees: walk and kernel part on node aks-0", "- it was not seen to arrive at vm testvm",
				"- no answer"}, "the destination sees t", ""},
		"reply": {toVM, Live{Parted: "node/aks-0", Back: true, Receiver: "vm/testvm", Received: tcp("10.13.76.5:41000", "10.13.1.4:80").Tuple, Answer: "refused"},
			[]string{"the destination sees the sender's own address, 10.13.76.5:41000, because no rule translates it",
				"- what becomes of the reply is unknown: walk and kernel part on node aks-0; refused"}, "nothing listens", "10.13.76.5"},
		"dropped, but received": {dropped, Live{Parted: "node/n", Back: true, Receiver: pod, Received: tcp("[fd00::1]:7", "10.13.1.4:80").Tuple, Answer: "answered"},
			[]string{"the receiver saw [fd00::1]:7 (pod default/nginx-75fdcbbc74-zkvhc)", "- why is unknown: walk and kernel part on node n"},
			"sees nothing", "fd00::1"},
		"undecided, received": {programDecides, Live{Receiver: pod, Received: tcp("10.13.76.4:9", "10.13.1.4:80").Tuple, Answer: "the connection was established"},
			[]string{"the receiver saw 10.13.76.4:9 (pod default/nginx-75fdcbbc74-zkvhc)", "- how it got there is unknown: ",
				"- the connection was established"}, "it is unknown whether", "10.13.76.4"},
		"undecided, received, disguised": {programDecides, Live{Receiver: pod, Received: tcp("10.13.76.4:9", "10.13.1.4:80").Tuple, Disguise: "it may lie"},
			[]string{"the kernel of pod default/nginx-75fdcbbc74-zkvhc saw 10.13.76.4:9; what its program sees is unknown: it may lie"}, "the receiver", "10.13.76.4"},
		"disguised": {disguise, Live{Receiver: "vm/testvm", Received: tcp("10.13.76.5:41000", "10.13.1.4:80").Tuple},
			[]string{"the kernel of vm testvm sees the sender's own address, 10.13.76.5:41000, because no rule translates it; what its program sees is unknown: it may lie",
				"- what the sender's program sees of the reply is unknown: the reply may lie"}, "the destination sees", "10.13.76.5"},
		"undecided, not received": {programDecides, Live{Missed: []string{pod}, Answer: "no answer"},
			[]string{"it is unknown whether the destination sees the packet: ", "- it was not seen to arrive at pod default/nginx", "- no answer"},
			"saw 1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			e := c.walked(t)
			o := Options{Owners: ownersOf(e.objects), Live: &c.live}
			var text, document bytes.Buffer
			if err := Text(&text, e.result, o); err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(text.String(), "\n")
			for _, want := range c.want {
				if !slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, want) }) {
					t.Errorf("missing %q", want)
				}
			}
			if _, conclusion, _ := strings.Cut(text.String(), c.want[0]); strings.Contains(conclusion, c.not) {
				t.Errorf("it has %q", c.not)
			}
			if t.Failed() {
				t.Log(text.String())
			}
			if err := JSON(&document, e.result, o); err != nil {
				t.Fatal(err)
			}
			var d Document
			if err := json.Unmarshal(document.Bytes(), &d); err != nil {
				t.Fatal(err)
			}
			if sees := d.Outcomes[0].Sees; sees.SrcIP != c.srcIP || !strings.HasPrefix(sees.Text, c.want[0]) {
				t.Errorf("in JSON %+v", sees)
			}
		})
	}
}

// programDecides leaves open what becomes of a packet.
func programDecides(t *testing.T) example {
	e := toVM(t)
	end := &e.result.Outcomes[0].End
	end.Kind, end.Why = walk.Undecided, "a program at eth0 decides"
	e.result.Outcomes[0].Back, e.result.Outcomes[0].BackEnd = nil, nil
	return e
}

// disguise leaves open what the programs see that take a packet and its reply.
func disguise(t *testing.T) example {
	e := toVM(t)
	e.result.Outcomes[0].End.Disguise, e.result.Outcomes[0].BackEnd.Disguise = "it may lie", "the reply may lie"
	return e
}

// byMasquerade returns a walk of a packet that gets a port by chance.
func byMasquerade(t *testing.T) example {
	return forwarded(t, routes+"$ ip address\n2: eth0: <UP> mtu 1500 state UP\n    inet 10.13.76.4/24 scope global eth0\n3: eth1: <UP> mtu 1500 state UP\n"+
		"$ iptables-save -t nat\n*nat\n:POSTROUTING ACCEPT [0:0]\n-A POSTROUTING -j MASQUERADE --random-fully\nCOMMIT\n")
}
