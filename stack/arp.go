package stack

import "github.com/unet-go/unet/wire"

// inputARP answers requests for our address (RFC 826), if it is ours alone; for a shared
// one the kernel answers. Link addresses of others come from the route service.
func (s *Stack) inputARP(eth wire.Ethernet) {
	a, err := wire.ParseARP(eth.Payload())
	if err != nil {
		s.count[arpMalformed]++
		return
	}
	link, sender := a.SenderLink(), a.SenderAddr()
	probe := a.Op() == wire.ARPRequest && sender == [4]byte{} // RFC 5227: asks, but claims nothing
	switch {
	case !s.wholeAddress:
		s.count[arpNotOurs]++
	case a.Op() != wire.ARPRequest && a.Op() != wire.ARPReply,
		link.IsGroup(), link == wire.LinkAddr{},
		!probe && (sender[0] == 0 || sender[0] == 127 || sender[0] >= 224 || s.isBroadcast(sender)):
		s.count[arpBogus]++
	case sender == s.addr:
		if link != s.linkAddr {
			s.count[arpConflict]++
		}
	case a.TargetAddr() != s.addr || a.Op() != wire.ARPRequest:
		s.count[arpNotOurs]++
	default:
		f, ok := s.reply(wire.EthernetHeaderLen + wire.ARPLen)
		if !ok {
			return
		}
		wire.PutEthernet(f.Data, link, s.linkAddr, wire.EtherTypeARP)
		wire.PutARP(f.Data[wire.EthernetHeaderLen:], wire.ARPFields{
			Op: wire.ARPReply, SenderLink: s.linkAddr, SenderAddr: s.addr, TargetLink: link, TargetAddr: sender,
		})
		if s.transmit(f) {
			s.count[arpRepliesSent]++
		}
	}
}
