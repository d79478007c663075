package iptables

import "packetwalk.dev/internal/model/netfilter"

var nfqueueTarget = targetExtension{
	options: spec("queue-num queue-balance queue-bypass=0 queue-cpu-fanout=0"),
	lower:   lowerQueue,
	listed:  (*restReader).nfqueue,
}

func lowerQueue(_ *lowerer, t *Target) netfilter.Statement {
	who := "the reader of queue 0"
	for i := range t.Options {
		switch o := &t.Options[i]; o.Name {
		case "queue-num":
			who = "the reader of queue " + o.arg()
		case "queue-balance":
			who = "the readers of queues " + o.arg()
		}
	}
	return netfilter.HandTo(who)
}

func (l *restReader) nfqueue(t *Target) bool {
	if !l.lit("NFQUEUE") {
		return false
	}
	switch {
	case l.lit("num"):
		if !l.word(t, "queue-num") {
			return false
		}
	case l.lit("balance"):
		if !l.word(t, "queue-balance") {
			return false
		}
	default:
		return false
	}
	for _, flag := range []string{"bypass", "cpu-fanout"} {
		if l.lit(flag) {
			t.add("queue-" + flag)
		}
	}
	return true
}
