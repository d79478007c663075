package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"packetwalk.dev/internal/answer/endpoint"
	"packetwalk.dev/internal/answer/explain"
	"packetwalk.dev/internal/answer/picture"
	"packetwalk.dev/internal/answer/proof"
	"packetwalk.dev/internal/azure/armview"
	"packetwalk.dev/internal/base/limitio"
	"packetwalk.dev/internal/base/termsafe"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/session"
	"packetwalk.dev/internal/webui"
	"packetwalk.dev/internal/writers"
)

// walkOptions are the flags of walk.
type walkOptions struct {
	from, to, proto string
	at, choose      string
	snapshot, name  string
	files           *os.Root // outside of which snapshot leads nowhere; nil for all of the machine
	pasted          []byte   // a text in place of a file's
	namespace       string   // of ends that name none
	owner           string   // of the sending socket: UID[:GID]
	names           string   // of a redacted snapshot: the file with its originals
	output          string
	compare         string // the file of an earlier walk
	live            bool
	resolve         bool           // names of a cluster's sender, without live
	most            int            // nodes that are read, of a cluster
	plugin          *pluginOptions // of kubectl's plugin; nil for a lab or a file
	colour          when
	azure           azureOptions
}

func walkCommand(s Streams) *cobra.Command {
	var o walkOptions
	c := &cobra.Command{
		Use:   "walk --from END --to END [--live | --snapshot FILE] [-o FORMAT]",
		Short: "say where a packet goes, which source its destination sees, and which rule decided",
		Long: `Takes a packet through the network as the kernel would and says, machine by machine, what its rules, routes and translations make of it; at the end
stands the source address that the destination sees and the rule that decided it. Of several outcomes it shows a table and the steps of one. --live sends the packet and compares every step with the kernel's own trace.
The exit status is 3 where it is not known what becomes of the packet. For a DNS name, the walk begins with the query's own way to the sender's
resolver; if the query is lost, no packet is walked, and the exit status is 1.

An END is pod/[NAMESPACE/]NAME[:PORT], svc/[NAMESPACE/]NAME[:PORT|:PORTNAME], deploy/, sts/, ds/ or job/[NAMESPACE/]NAME[:PORT] (one of its pods), node/NAME[:PORT],
vm/NAME[:PORT], netns/NAME[:PORT] (of a capture), internet[/NAME][:PORT], the name of a node, VM or internet host alone as ssh takes it (client, vm:22),
a DNS name[:PORT], or an address with an optional port. Packets of a public address that no host has come in at the lab's internet.`,
		Example: `  packetwalk walk --from internet --to svc/whereami
  packetwalk walk --from pod/web-1 --to vm/vm:80 --live
  packetwalk walk --from node/aks-nodepool1-0 --to svc/kube-system/kube-dns:53 --proto udp -o wide
  packetwalk walk --from internet --to svc/whereami --choose 2 -o pcapng > walk.pcapng
  packetwalk walk --from internet --to svc/whereami --compare before.json
  packetwalk walk --snapshot rules.txt --at node --from 10.244.0.7 --to 10.0.159.58:80`,
		Args: noArguments("the ends are --from END and --to END"),
		RunE: func(c *cobra.Command, _ []string) error { return o.run(c.Context(), s) },
	}
	o.flags(c)
	f := c.Flags()
	f.StringVar(&o.snapshot, "snapshot", "", "walk through a capture, or a text with rules, in place of the lab; \"-\" is standard input")
	f.StringVar(&o.names, "map", "", "with --snapshot: a file by 'capture --redact --map', whose names and addresses the capture gets back")
	f.StringVar(&o.at, "at", "", "the host where the packet comes in, for senders that are not in the snapshot")
	f.BoolVar(&o.resolve, "resolve", false, "")
	_ = f.MarkHidden("resolve") // it is kubectl packetwalk's: check says so
	f.StringVarP(&o.namespace, "namespace", "n", "", `the namespace of ends that name none (default "default")`)
	nameFlag(c, &o.name)
	ends := completeBy(openedEnds(func(ctx context.Context) (*session.Session, error) {
		var none endpoint.End
		return o.open(ctx, s, &none, &none)
	}))
	for _, flag := range []string{"from", "to"} {
		_ = c.RegisterFlagCompletionFunc(flag, ends) // the flags are there
	}
	return c
}

// flags defines the flags that walks of all kinds have.
func (o *walkOptions) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&o.from, "from", "", "the END that sends")
	f.StringVar(&o.to, "to", "", "the END that is sent to")
	f.StringVar(&o.proto, "proto", "", "tcp, udp or icmp (default the service's, else tcp)")
	f.StringVar(&o.owner, "uid", "", "UID[:GID] of the program that sends, such as a sidecar's 1337 (without it: 0, which is noted where a rule tests it)")
	f.BoolVar(&o.live, "live", false, "send the packet, too, and compare every step with the kernel")
	f.StringVar(&o.choose, "choose", "", "of several outcomes, only this: its number, an endpoint's address, or a host on the way")
	f.StringVar(&o.compare, "compare", "", "show what differs from an earlier walk: a FILE that 'walk -o json' wrote")
	f.StringVarP(&o.output, "output", "o", "text", "text, short (a line an outcome), wide (every rule), json, pcapng, mermaid (a diagram for Markdown), html (a page) or svg (a picture)")
	o.azure.flag(f)
	colourFlag(c, &o.colour)
	completeFlag(c, "output", slices.Sorted(maps.Keys(formats))...)
	completeFlag(c, "proto", "tcp", "udp", "icmp")
}

// formats are the forms of output.
var formats = map[string]func(Streams, *walkAnswer) error{
	"text":  func(s Streams, a *walkAnswer) error { return explain.Text(s.Out, a.result, a.options) },
	"short": func(s Streams, a *walkAnswer) error { return explain.Short(s.Out, a.result, a.options) },
	"wide":  func(s Streams, a *walkAnswer) error { return explain.Wide(s.Out, a.result, a.options) },
	"json": func(s Streams, a *walkAnswer) error {
		return explain.JSON(termsafe.Writer(s.Out), a.result, a.options)
	},
	"mermaid": func(s Streams, a *walkAnswer) error { return explain.Mermaid(s.Out, a.result, a.options) },
	"pcapng": func(s Streams, a *walkAnswer) error {
		if a.result == nil {
			printNotes(s, a.options.Query.Text())
			return nil
		}
		return explain.Pcapng(s.Out, a.result, a.options)
	},
	"html": func(s Streams, a *walkAnswer) error {
		answer, err := a.picture(picture.Options{})
		if err != nil {
			return err
		}
		return answer.HTML(s.Out)
	},
	"svg": func(s Streams, a *walkAnswer) error {
		answer, err := a.picture(picture.Options{})
		if err != nil {
			return err
		}
		return answer.SVG(s.Out)
	},
}

// formatNames lists the forms of output for people.
const formatNames = "text, short, wide, json, pcapng, mermaid, html or svg"

// picture returns the answer with the network and the ways through it.
func (a *walkAnswer) picture(o picture.Options) (*webui.Answer, error) {
	return webui.NewAnswer(a.question, picture.New(a.source, o), a.source, a.result, a.options)
}

// check reads what can be read without a snapshot; all its errors are the user's to mend.
func (o *walkOptions) check(s Streams) (from, to endpoint.End, proto packet.Protocol, err error) {
	switch {
	case o.from == "" || o.to == "":
		err = errors.New("walk needs both ends: packetwalk walk --from pod/NAME --to svc/NAME")
	case formats[o.output] == nil:
		err = fmt.Errorf("unknown output format %q; use %s", o.output, formatNames)
	case o.live && o.snapshot != "":
		err = errors.New("--live needs the kernel itself: leave out --snapshot, or --live for the prediction alone")
	case o.resolve && o.plugin == nil && o.snapshot != "":
		err = errors.New("--resolve is for kubectl packetwalk walk: a capture has no resolver; leave it out, and give the address of a name")
	case o.resolve && o.plugin == nil:
		err = errors.New("--resolve is for kubectl packetwalk walk: a lab resolves names without it; leave it out")
	case o.names != "" && o.snapshot == "":
		err = errors.New("--map goes with --snapshot and a redacted capture")
	case o.live && o.choose != "":
		err = errors.New("with --live the kernel chooses: leave out --choose")
	case notPositive(o.choose):
		err = fmt.Errorf("--choose %s: outcomes are numbered from 1", o.choose)
	case o.live && o.at != "":
		err = errors.New("--live sends from the sender itself: leave out --at")
	case o.compare != "" && o.output != "text":
		err = fmt.Errorf("--compare prints text: leave out -o %s", o.output)
	case o.output == "pcapng" && isTerminal(s.Out):
		err = errors.New("a capture is no text for a terminal; add > FILE")
	}
	if err != nil {
		return from, to, 0, err
	}
	var errs [4]error
	if from, errs[0] = endpoint.Parse(o.from); errs[0] != nil {
		errs[0] = fmt.Errorf("--from: %w", errs[0])
	}
	if to, errs[1] = endpoint.Parse(o.to); errs[1] != nil {
		errs[1] = fmt.Errorf("--to: %w", errs[1])
	}
	proto, errs[2] = parseProto(o.proto)
	if o.owner != "" {
		_, _, _, errs[3] = parseOwner(o.owner)
	}
	return from, to, proto, errors.Join(errs[:]...)
}

// notPositive reports whether a word is a number below one.
func notPositive(word string) bool {
	n, err := strconv.Atoi(word)
	return err == nil && n < 1
}

func parseProto(s string) (packet.Protocol, error) {
	switch strings.ToLower(s) {
	case "":
		return 0, nil
	case "tcp":
		return packet.TCP, nil
	case "udp":
		return packet.UDP, nil
	case "icmp", "icmpv6", "ping":
		return packet.ICMP, nil
	}
	return 0, fmt.Errorf("unknown protocol %q of --proto; use tcp, udp or icmp", s)
}

// parseOwner reads UID[:GID].
func parseOwner(s string) (uid, gid uint32, hasGroup bool, err error) {
	const most = 1<<32 - 2 // the last number stands for none (chown(2))
	user, group, hasGroup := strings.Cut(s, ":")
	u, err := strconv.ParseUint(user, 10, 32)
	g, err2 := uint64(0), error(nil)
	if hasGroup {
		g, err2 = strconv.ParseUint(group, 10, 32)
	}
	if err != nil || err2 != nil || u > most || g > most {
		return 0, 0, false, fmt.Errorf("bad owner %q of --uid; want numbers, UID or UID:GID, such as 1337", s)
	}
	return uint32(u), uint32(g), hasGroup, nil
}

// setOwner gives the packet the owner that the user names.
func (o *walkOptions) setOwner(req *walk.Request) (notes []string, err error) {
	if o.owner == "" {
		return nil, nil
	}
	if req.Forwarded {
		return nil, fmt.Errorf("--uid %s: rules test it where the packet is sent, and the sender is not at hand; leave it out", o.owner)
	}
	uid, gid, hasGroup, err := parseOwner(o.owner)
	p := &req.Packet
	p.HasOwner, p.AssumedGroup, p.UID, p.GID = true, !hasGroup, uid, gid
	note := fmt.Sprintf("sent by a socket of user %d", uid)
	if hasGroup || o.live {
		note += fmt.Sprintf(" and group %d", gid)
	}
	return []string{note}, err
}

// run walks and prints.
func (o *walkOptions) run(ctx context.Context, s Streams) (err error) {
	from, to, proto, err := o.check(s)
	if err != nil {
		return badInput{err}
	}
	if o.plugin != nil && o.plugin.dryRun {
		return o.plan(ctx, s, from, to)
	}
	write := formats[o.output]
	if o.compare != "" {
		if write, err = o.comparison(); err != nil {
			return badInput{err}
		}
	}
	opened, err := o.open(ctx, s, &from, &to)
	if err != nil {
		return err
	}
	defer func() { err = closeSession(ctx, s, opened, err) }()
	if err := o.azure.extend(ctx, s, opened); err != nil {
		return err
	}
	a, err := o.answer(ctx, s, opened, from, to, proto)
	if err != nil {
		return err
	}
	if err := write(s, a); err != nil {
		return err
	}
	return a.status
}

// comparison reads an earlier walk and returns what writes how another differs from it.
func (o *walkOptions) comparison() (func(Streams, *walkAnswer) error, error) {
	file, err := os.Open(o.compare)
	if err != nil {
		return nil, fmt.Errorf("--compare: %w", err)
	}
	defer file.Close() // only read
	before, err := explain.ReadEarlier(file)
	if tooLong, ok := errors.AsType[*limitio.TooLongError](err); ok {
		return nil, fmt.Errorf("--compare %s: %w; write one outcome: walk --choose N -o json", o.compare, tooLong)
	}
	if err != nil {
		return nil, fmt.Errorf("--compare %s: %w", o.compare, err)
	}
	return func(s Streams, a *walkAnswer) error {
		return explain.Compare(s.Out, o.compare, before, a.result, a.options)
	}, nil
}

// walkAnswer holds a walk and what its forms of output need.
type walkAnswer struct {
	question webui.Question
	source   snapshot.Source
	result   *walk.Result // nil where the query for a name is not answered, so that no packet is sent
	options  explain.Options
	status   error // that the command ends with
}

// answer walks through what is open.
func (o *walkOptions) answer(
	ctx context.Context, s Streams, opened *session.Session, from, to endpoint.End, proto packet.Protocol,
) (*walkAnswer, error) {
	for _, e := range []*endpoint.End{&from, &to} {
		if e.Namespace == "" && e.Kind.Namespaced() {
			e.Namespace = o.namespace
		}
	}
	read, err := endpoint.Read(opened.World(ctx, o.at), from, to, proto)
	if err != nil && (read.Query == nil || read.Query.Resolved || read.Query.Unanswered == "") {
		return nil, badInput{err}
	}
	on := o.colour.screen(s.Out)
	a := &walkAnswer{question: webui.Question{From: o.from, To: o.to, Proto: o.proto, At: o.at, UID: o.owner}, source: opened.Source()}
	a.options = explain.Options{Lines: opened.Lines, Redacted: opened.RedactedNames, Time: opened.Taken, Read: opened.Assumed, Text: opened.Text,
		Colour: on.colour, Width: on.width}
	options := &a.options
	query, agreed, queryErr := o.query(ctx, s, opened, read.Query, *options)
	if queryErr != nil {
		return nil, queryErr
	}
	if options.Query = query; query != nil && (err != nil || query.Fate() == explain.QueryLost) {
		return a, a.conclude(query, err)
	}
	req := read.Request
	ownerNotes, err := o.setOwner(&req)
	if err != nil {
		return nil, badInput{err}
	}
	req.EveryRule = o.output == "wide"
	options.Notes = slices.Concat(read.Notes, ownerNotes, opened.Notes)
	result, packetAgreed, err := o.walk(ctx, s, opened, req, o.choose, options)
	if other, ok := errors.AsType[*armview.MismatchError](err); ok {
		return nil, azureError(opened, other)
	}
	a.source = opened.Source()
	if err != nil {
		if _, gone := a.source.Host(req.Host); errors.Is(gone, fs.ErrNotExist) {
			return nil, fmt.Errorf("--from %s: %s not found; 'kubectl get pods -A -o wide' lists the pods", from, req.Host)
		}
		return nil, err
	}
	a.result = result
	met := slices.Compact(slices.Sorted(slices.Values(slices.Concat(read.Hosts, result.Hosts()))))
	options.Owners = opened.Owners(met)
	options.Owners.States = a.source
	if o.choose != "" {
		objects := a.source.Objects()
		if err := options.Choose(result, o.choose, &objects); err != nil {
			return nil, badInput{err}
		}
	}
	options.Notes = append(options.Notes, writers.Orphans(a.source, met)...)
	options.Notes = append(options.Notes, opened.Diagnose(ctx, &req.Packet, from, to)...)
	options.Read = append(options.Read, explain.NetworkPolicies(a.source, result, options.Owners)...)
	options.Read = append(options.Read, opened.AssumedInterfaces(met)...)
	if !o.live { // with --live the kernel says so
		ended, err := explain.EndedConnections(a.source, result)
		if err != nil {
			return nil, err
		}
		options.Notes = append(options.Notes, ended...)
	}
	switch {
	case !agreed || !packetAgreed:
		a.status = exitStatus(1)
	case query != nil && query.Fate() == explain.QueryUnknown, explain.IsUndecided(result, o.live):
		a.status = exitUndecided
	}
	return a, nil
}

// conclude sets the status of an answer without a packet, whose name's query is not answered. cause says why there is no address. It is nil
// where an address is known.
func (a *walkAnswer) conclude(query *explain.Query, cause error) error {
	switch query.Fate() {
	case explain.QueryAnswered: // by the walk, but no answer came
		return badInput{cause}
	case explain.QueryUnknown:
		a.status = exitUndecided
	default:
		a.status = exitStatus(1)
	}
	return nil
}

// query walks the query before the packet and, with --live, compares. The second result is as walk's.
func (o *walkOptions) query(
	ctx context.Context, s Streams, opened *session.Session, asked *endpoint.Query, options explain.Options,
) (*explain.Query, bool, error) {
	if asked == nil {
		return nil, true, nil
	}
	if _, err := o.setOwner(&asked.Request); err != nil {
		return nil, false, badInput{err}
	}
	asked.EveryRule = o.output == "wide"
	result, agreed, err := o.walk(ctx, s, opened, asked.Request, "", &options)
	if err != nil {
		return nil, false, fmt.Errorf("walk the DNS query for %s: %w", asked.Name, err)
	}
	options.Owners = opened.Owners(result.Hosts())
	options.Owners.States = opened.Source()
	options.Read = slices.Concat(options.Read, explain.NetworkPolicies(opened.Source(), result, options.Owners))
	return &explain.Query{Name: asked.Name, Resolved: asked.Resolved, Unanswered: asked.Unanswered, Result: result, Options: options}, agreed, nil
}

// exitUndecided is the status of a walk that does not know what becomes of the packet.
const exitUndecided = exitStatus(3)

// open opens what to walk through.
func (o *walkOptions) open(ctx context.Context, s Streams, from, to *endpoint.End) (*session.Session, error) {
	switch {
	case o.plugin != nil:
		return o.openCluster(ctx, s, from, to)
	case o.snapshot != "":
		f := session.File{Path: o.snapshot, Root: o.files, Pasted: o.pasted, Map: o.names, Stdin: s.In, Host: o.at,
			To: netip.AddrPortFrom(to.Address, to.Port)}
		if o.at == armview.Host && len(o.azure) > 0 { // the host is Azure's, not the node that a text shows
			f.Host = ""
		}
		return session.OpenFile(ctx, f)
	}
	if err := needRoot(); err != nil {
		return nil, err
	}
	return session.OpenLab(ctx, o.name)
}

// closeSession gives back what was opened, after an error or not. What is left is told, and the status then is 1.
func closeSession(ctx context.Context, s Streams, opened *session.Session, err error) error {
	if left := opened.Close(ctx); left != nil {
		printNotes(s, left.Error())
		err = cmp.Or(err, error(exitStatus(1)))
	}
	return err
}

// walk predicts and, with --live, compares. The second result is false where prediction and kernel part, or the packet was not sent.
func (o *walkOptions) walk(
	ctx context.Context, s Streams, opened *session.Session, req walk.Request, choose string, options *explain.Options,
) (*walk.Result, bool, error) {
	if !o.live {
		objects := opened.Source().Objects()
		result, err := opened.WalkSome(ctx, req, func(outcomes []walk.Outcome) []walk.Outcome {
			return explain.MayChoose(outcomes, choose, &objects)
		})
		return result, true, err
	}
	var announce func(*walk.Result, []string)
	if opened.Cluster != nil {
		announce = func(result *walk.Result, receivers []string) {
			printNotes(s, announcement(opened.Cluster, result, receivers))
		}
	}
	receivers := endpoint.Receivers(opened.World(ctx, o.at), req.Packet.Tuple)
	result, report, err := proof.Live(ctx, opened, req, receivers, announce)
	if err != nil {
		return nil, false, err
	}
	if result, err = options.AddReport(opened.Source(), result, &report); err != nil {
		return nil, false, err
	}
	return result, report.First == nil && report.NotSent == "", nil
}
