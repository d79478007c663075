package explain

import (
	"fmt"
	"strings"

	"packetwalk.dev/internal/answer/proof"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/model/witness"
)

// AddReport adds what the kernel showed of a packet that was sent. It returns the prediction with only the outcomes that the kernel may
// have taken, or all if the packet was not sent.
func (o *Options) AddReport(source snapshot.Source, result *walk.Result, report *proof.Report) (*walk.Result, error) {
	o.Live, o.Report = liveOf(source, report), report
	for _, changes := range report.Changed {
		o.Notes = append(o.Notes, "sent again, because meanwhile something changed at "+changes)
	}
	if report.NotSent == "" {
		total := len(result.Outcomes)
		var err error
		if result, err = proof.Narrow(source, result, report); err != nil {
			return nil, err
		}
		if total > 1 {
			o.Notes, o.Total = append(o.Notes, candidatesNote(report.Candidates, total)), total
			for _, i := range report.Candidates {
				o.Numbers = append(o.Numbers, i+1)
			}
		}
	}
	o.Notes = append(o.Notes, strings.Split(report.String(), "\n")...)
	o.Notes = append(o.Notes, UnmetPrograms(result)...)
	return result, nil
}

// candidatesNote says which of several outcomes the kernel took, as far as that was seen.
func candidatesNote(candidates []int, total int) string {
	if len(candidates) == 1 {
		return fmt.Sprintf("the kernel went way %d of %d; without --live all are shown", candidates[0]+1, total)
	}
	return fmt.Sprintf("the kernel went one of %d ways of %d, which differ only in what was not seen", len(candidates), total)
}

// answerWords says what the sender learnt.
var answerWords = map[witness.Answer]string{
	witness.Connected: "the connection was established", witness.Answered: "an answer came back",
	witness.Refused:     "the sender was refused: nothing listens there, or a rule rejects it",
	witness.Unreachable: "the sender was told that the destination is unreachable",
	witness.NotSent:     "the sender's kernel did not send the packet", witness.TimedOut: "no answer came back",
}

// liveOf returns what the kernel showed, for the conclusion; nil where no packet was sent.
func liveOf(source snapshot.Source, report *proof.Report) *Live {
	if report.NotSent != "" {
		return nil
	}
	l := &Live{Receiver: report.Receiver, Received: report.Received, Missed: report.Missed, Answer: answerWords[report.Answer.Answer]}
	if d := report.First; d != nil {
		l.Parted, l.Back = d.Host, d.Back
	}
	if report.Way != nil {
		end := report.Way.End
		if end.Kind == walk.Delivered && end.Host == report.Receiver {
			end.Packet.Tuple = report.Received
		}
		l.Source = &end
	}
	if report.Receiver != "" {
		if h, err := source.Host(report.Receiver); err != nil {
			l.Disguise = "its programs at sockets could not be read: " + err.Error()
		} else {
			l.Disguise = walk.Disguise(h, &report.Received)
		}
	}
	return l
}
