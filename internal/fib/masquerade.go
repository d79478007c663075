package fib

import "net/netip"

// SelectSource is the machine's address that the kernel would use on a link towards another address, for what is no local output:
// masquerading (net/netfilter/nf_nat_masquerade.c) and ARP requests. It is the zero Addr where there is none.
func (s *State) SelectSource(link string, towards netip.Addr) netip.Addr {
	if towards.Is6() {
		return s.selectIPv6(link, towards)
	}
	return s.selectAddress(link, towards, 0)
}
