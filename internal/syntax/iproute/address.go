package iproute

import (
	"fmt"
	"net/netip"

	"packetwalk.dev/internal/model/fib"
)

// addressJSON is one entry of addr_info.
type addressJSON struct {
	Local, Address, Broadcast, Scope            string
	Bits                                        int `json:"prefixlen"`
	Secondary, Deprecated, Temporary, Tentative bool
}

// ParseAddresses reads "ip -j addr".
func ParseAddresses(data []byte) ([]fib.Address, error) {
	list, err := decode[linkJSON](data, "addresses")
	if err != nil {
		return nil, err
	}
	var all []fib.Address
	for _, l := range list {
		for _, j := range l.Addresses {
			a, err := j.address(l.Name)
			if err != nil {
				return nil, fmt.Errorf("address of %s: %w", l.Name, err)
			}
			if a.Prefix.IsValid() {
				all = append(all, a)
			}
		}
	}
	return all, nil
}

// address gives the zero Address for one of another family than IPv4 and IPv6, which iproute2 prints without a local part.
func (j addressJSON) address(link string) (fib.Address, error) {
	if j.Local == "" {
		return fib.Address{}, nil
	}
	local, err := netip.ParseAddr(j.Local)
	if err != nil {
		return fib.Address{}, err
	}
	local = local.WithZone("")
	a := fib.Address{
		Link: link, Scope: scopeName(j.Scope), Secondary: j.Secondary || j.Temporary, Prefix: netip.PrefixFrom(local, j.Bits),
		Deprecated: j.Deprecated, Temporary: j.Temporary, Tentative: j.Tentative,
	}
	if !a.Prefix.IsValid() {
		return fib.Address{}, fmt.Errorf("%s: %d is no prefix length", j.Local, j.Bits)
	}
	if j.Address != "" {
		peer, err := netip.ParseAddr(j.Address)
		if err != nil {
			return fib.Address{}, err
		}
		a.Prefix, a.Peer = netip.PrefixFrom(local, local.BitLen()), netip.PrefixFrom(peer.WithZone(""), j.Bits)
	}
	if j.Broadcast != "" {
		if a.Broadcast, err = netip.ParseAddr(j.Broadcast); err != nil {
			return fib.Address{}, err
		}
	}
	return a, nil
}
