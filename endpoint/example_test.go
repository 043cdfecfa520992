package endpoint_test

import (
	"fmt"
	"net/netip"

	"github.com/unet-go/unet/endpoint"
)

// Tags as a policy, unetd list and the command line write them.
func ExampleParseTag() {
	for _, s := range []string{"tcp:10.0.0.1:443", "udp:10.0.0.1:7040-7103", "addr:fd00::1", "msg:7", "tcp:10.0.0.1"} {
		t, err := endpoint.ParseTag(s)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(t, t.Block)
	}
	fmt.Println(endpoint.UDPTag(netip.MustParseAddrPort("10.0.0.1:7000")))
	// Output:
	// tcp:10.0.0.1:443 false
	// udp:10.0.0.1:7040-7103 true
	// addr:fd00::1 false
	// msg:7 false
	// not a tag: "tcp:10.0.0.1": want udp:ADDR:PORT, tcp:ADDR:PORT (or 64 ports from a multiple of that on, as PORT-PORT), addr:ADDR or msg:NUMBER
	// udp:10.0.0.1:7000
}
