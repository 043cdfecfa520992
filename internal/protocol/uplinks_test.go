//go:build linux

package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/unet-go/unet/endpoint"
)

// The interfaces of an error that names several cross the socket. An error of an older unetd has none.
func TestUplinksError(t *testing.T) {
	choices := []endpoint.UplinkChoice{{Interface: "eth0", Tags: []endpoint.Tag{endpoint.AddrTag(netip.MustParseAddr("10.0.0.7"))}}, {Interface: "eth1"}}
	sent, err := json.Marshal(NewError(fmt.Errorf("%w: name one", &endpoint.UplinksError{Uplinks: choices})))
	if err != nil {
		t.Fatal(err)
	}
	const older = `{"code":"uplink","message":"which interface: name one"}`
	for text, want := range map[string]int{string(sent): 2, older: 0} {
		e := new(Error)
		if err := json.Unmarshal([]byte(text), e); err != nil {
			t.Fatal(err)
		}
		var several *endpoint.UplinksError
		if !errors.Is(e, endpoint.ErrUplink) || errors.As(e, &several) != (want > 0) || e.Error() != "which interface: name one" {
			t.Errorf("%s: %v", text, e)
		}
		if want > 0 && (len(several.Uplinks) != want || several.Uplinks[0].Tags[0] != choices[0].Tags[0] || several.Uplinks[1].Interface != "eth1") {
			t.Errorf("%s: %v", text, several.Uplinks)
		}
	}
}
