package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"
)

// A Client reads and changes a zone at a name server, over TCP, each message signed.
type Client struct {
	Server string // ADDRESS:PORT
	Key    *Key
}

// clientTime is how long an exchange with the server may take.
const clientTime = 10 * time.Second

// sign notes on a message who signs it; the library signs it when it is sent.
func (c *Client) sign(m *dns.Msg) *dns.Msg {
	return m.SetTsig(c.Key.owner(), dns.HmacSHA256, 300, time.Now().Unix())
}

// Transfer reads the whole zone.
func (c *Client) Transfer(ctx context.Context, zone string) (Records, error) {
	ctx, cancel := context.WithTimeout(ctx, clientTime)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", c.Server)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	t := &dns.Transfer{Conn: &dns.Conn{Conn: conn}, ReadTimeout: clientTime, WriteTimeout: clientTime, TsigSecret: c.Key.secrets()}
	parts, err := t.In(c.sign(new(dns.Msg).SetAxfr(zone+".")), c.Server)
	if err != nil {
		return nil, err
	}
	records, err := Records{}, error(nil)
	for n := 0; ; {
		part, more := <-parts
		if !more {
			break
		}
		n += len(part.RR)
		err = errors.Join(err, part.Error)
		if n > maxRecords+2 {
			err = fmt.Errorf("the zone has more than %d addresses", maxRecords)
		}
		if err != nil {
			conn.Close() // the rest is a failed read
			continue
		}
		for _, rr := range part.RR {
			err = errors.Join(err, records.add(rr))
		}
	}
	for name := range records {
		slices.SortFunc(records[name], netip.Addr.Compare)
	}
	return records, err
}

// Update has the server make an update.
func (c *Client) Update(ctx context.Context, update *dns.Msg) error {
	ctx, cancel := context.WithTimeout(ctx, clientTime)
	defer cancel()
	client := &dns.Client{Net: "tcp", Timeout: clientTime, TsigSecret: c.Key.secrets()}
	answer, _, err := client.ExchangeContext(ctx, c.sign(update), c.Server)
	if answer != nil && answer.Rcode != dns.RcodeSuccess {
		return fmt.Errorf("the name server answers %s", dns.RcodeToString[answer.Rcode])
	}
	if err == nil && answer.IsTsig() == nil { // the library looks at the signature where there is one
		err = errors.New("the name server's answer is not signed")
	}
	return err
}
