package dns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/net/netutil"
)

// The limits of a server.
const (
	maxConnections = 128              // over TCP, at once; more wait in the kernel's queue
	maxRequests    = 256              // that are being answered; what comes beyond it over UDP is left out, as if it was lost
	messageTime    = 10 * time.Second // for a message over TCP, in either direction, and between two
	maxUDP         = 1232             // bytes of a reply over UDP to who takes that many
	perMessage     = 500              // records in a message of a transfer: far from the 64 KiB that it can have
)

// A Server is a small authoritative name server (RFC 1035), over UDP and TCP, for the lab's internet. It answers A, AAAA and, for the
// addresses that it knows, PTR. A name that it does not have does not exist, because there is no other server to ask.
type Server struct {
	Names Records
	Zone  *Zone     // whose names are beside those; nil without one
	Key   *Key      // of clients that may update and transfer the zone; nil: no client may
	Log   io.Writer // a line for each question, update and transfer

	slots chan struct{}
}

// Serve answers at an address and port until ctx ends. ready is called when it does.
func (s *Server) Serve(ctx context.Context, address string, ready func()) error {
	tcp, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	defer tcp.Close()
	udp, err := net.ListenPacket("udp", tcp.Addr().String())
	if err != nil {
		return err
	}
	defer udp.Close()
	ready()
	return s.serve(ctx, tcp, udp)
}

func (s *Server) serve(ctx context.Context, tcp net.Listener, udp net.PacketConn) error {
	s.slots = make(chan struct{}, maxRequests)
	ended := make(chan error, 2)
	for _, d := range []*dns.Server{{Listener: netutil.LimitListener(tcp, maxConnections)}, {PacketConn: udp, UDPSize: dns.DefaultMsgSize}} {
		d.Handler, d.TsigSecret, d.MsgAcceptFunc = s, s.Key.secrets(), accept
		d.ReadTimeout, d.WriteTimeout, d.IdleTimeout = messageTime, messageTime, func() time.Duration { return messageTime }
		go func() { ended <- d.ActivateAndServe() }()
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-ended:
		return err
	}
}

// accept lets updates in, too, beside what the library does.
func accept(h dns.Header) dns.MsgAcceptAction {
	const response = 1 << 15
	if h.Bits&response == 0 && int(h.Bits>>11)&0xf == dns.OpcodeUpdate {
		return dns.MsgAccept
	}
	return dns.DefaultMsgAcceptFunc(h)
}

// ServeDNS answers one message.
func (s *Server) ServeDNS(w dns.ResponseWriter, m *dns.Msg) {
	_, stream := w.RemoteAddr().(*net.TCPAddr)
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		if stream {
			w.Close()
		}
		return
	}
	switch {
	case m.Opcode == dns.OpcodeUpdate:
		s.reply(w, m, new(dns.Msg).SetRcode(m, s.update(w, m)))
	case len(m.Question) == 1 && (m.Question[0].Qtype == dns.TypeAXFR || m.Question[0].Qtype == dns.TypeIXFR):
		s.transfer(w, m, stream)
	default:
		s.query(w, m, stream)
	}
}

// reply sends an answer, signed if the question was, rightly.
func (s *Server) reply(w dns.ResponseWriter, m, answer *dns.Msg) {
	if t := m.IsTsig(); t != nil && s.Key != nil && w.TsigStatus() == nil {
		answer.SetTsig(t.Hdr.Name, dns.HmacSHA256, t.Fudge, time.Now().Unix())
	}
	_ = w.WriteMsg(answer) // the client may be gone
}

func (s *Server) query(w dns.ResponseWriter, m *dns.Msg, stream bool) {
	from := s.Names
	if len(m.Question) == 1 {
		q := m.Question[0]
		s.logf(w, "%d %s", q.Qtype, plain(q.Name))
		if s.Zone != nil && InZone(plain(q.Name), s.Zone.Name) {
			from = s.Zone.current()
		}
	}
	answer, size := from.answer(m), dns.MinMsgSize
	if opt := m.IsEdns0(); opt != nil {
		size = min(max(size, int(opt.UDPSize())), maxUDP)
		answer.SetEdns0(maxUDP, false)
	}
	if stream {
		size = dns.MaxMsgSize
	}
	answer.Truncate(size)
	s.reply(w, m, answer)
}

// permit returns the code for a message without the key, and 0 for one with it.
func (s *Server) permit(w dns.ResponseWriter, m *dns.Msg) (code int, why error) {
	t := m.IsTsig()
	switch {
	case s.Key == nil || s.Zone == nil:
		return dns.RcodeRefused, errors.New("no zone here takes updates")
	case t == nil:
		return dns.RcodeRefused, errors.New("it is not signed (TSIG)")
	case w.TsigStatus() != nil:
		return dns.RcodeNotAuth, w.TsigStatus()
	case !strings.EqualFold(t.Algorithm, dns.HmacSHA256):
		return dns.RcodeNotAuth, fmt.Errorf("it is signed by %s, not by %s", t.Algorithm, dns.HmacSHA256)
	}
	return 0, nil
}

// update takes an update and gives the code of the answer.
func (s *Server) update(w dns.ResponseWriter, m *dns.Msg) int {
	code, err := s.permit(w, m)
	if err == nil {
		if err = s.Zone.update(m); err != nil {
			code = dns.RcodeServerFailure
			if refusal := (*refusal)(nil); errors.As(err, &refusal) {
				code = refusal.Code
			}
		}
	}
	if err != nil {
		s.logf(w, "update refused: %v", err)
		return code
	}
	s.logf(w, "update of %s: %d changes", s.Zone.Name, len(m.Ns))
	return dns.RcodeSuccess
}

// transfer gives the whole zone to who has the key, over TCP, in as many messages as it takes.
func (s *Server) transfer(w dns.ResponseWriter, m *dns.Msg, stream bool) {
	code, err := s.permit(w, m)
	if err == nil && (!stream || plain(m.Question[0].Name) != s.Zone.Name || m.Question[0].Qtype != dns.TypeAXFR) {
		code, err = dns.RcodeRefused, errors.New("a transfer is of the zone, of type AXFR and over TCP")
	}
	if err != nil {
		s.logf(w, "transfer refused: %v", err)
		s.reply(w, m, new(dns.Msg).SetRcode(m, code))
		return
	}
	all := s.Zone.current().all(s.Zone.Name)
	parts := make(chan *dns.Envelope, len(all)/perMessage+1)
	for part := range slices.Chunk(all, perMessage) {
		parts <- &dns.Envelope{RR: part}
	}
	close(parts)
	if err := new(dns.Transfer).Out(w, m, parts); err != nil {
		s.logf(w, "transfer of %s: %v", s.Zone.Name, err)
	}
}

// logf logs a line that starts with the client's address. The DNS library has escaped unprintable bytes in names.
func (s *Server) logf(w dns.ResponseWriter, format string, a ...any) {
	fmt.Fprintf(s.Log, "%s %s\n", unmapped(w.RemoteAddr()), fmt.Sprintf(format, a...))
}

// unmapped returns an address with IPv4 as such, not mapped into IPv6.
func unmapped(a net.Addr) string { return strings.Replace(a.String(), "[::ffff:", "[", 1) }
