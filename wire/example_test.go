package wire_test

import (
	"fmt"
	"net/netip"

	"github.com/unet-go/unet/wire"
)

// An ARP request is written into a frame, and read from it.
func Example() {
	frame := make([]byte, wire.EthernetHeaderLen+wire.ARPLen)
	me := wire.LinkAddr{2, 0, 0, 0, 0, 1}
	wire.PutEthernet(frame, wire.Broadcast, me, wire.EtherTypeARP)
	wire.PutARP(frame[wire.EthernetHeaderLen:], wire.ARPFields{
		Op: wire.ARPRequest, SenderLink: me, SenderAddr: [4]byte{10, 0, 0, 1}, TargetAddr: [4]byte{10, 0, 0, 2},
	})

	var eth wire.Ethernet
	if err := eth.Parse(frame); err != nil {
		fmt.Println(err)
		return
	}
	arp, err := wire.ParseARP(eth.Payload)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("to", eth.Dst, "who has", netip.AddrFrom4(arp.TargetAddr()), "tell", netip.AddrFrom4(arp.SenderAddr()))
	// Output: to ff:ff:ff:ff:ff:ff who has 10.0.0.2 tell 10.0.0.1
}
