//go:build linux

package show

import (
	"bytes"
	"testing"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/account"
)

// The text of counters --check: whether the counters add up, with and without traffic meanwhile.
func TestCheckText(t *testing.T) {
	counters := func(arrived uint64) []endpoint.Counter {
		return []endpoint.Counter{{Name: "rx_port", Value: 100}, {Name: "rx_pass", Value: 20}, {Name: "tx_forged_tag", Value: 3}, {Name: "deliver_socket", Value: arrived}, {Name: "lost_deliver_backlog", Value: 5}}
	}
	for _, c := range []struct {
		arrived uint64
		moving  bool
		want    string
	}{
		{95, false, "they add up"},
		{94, false, "1 HAVE DISAPPEARED"},
		{97, false, "2 ARE NOT OF THE MUX"},
		{94, true, "1 are on their way or lost: traffic flows"},
		{97, true, "2 more than that: traffic flows"},
	} {
		var out bytes.Buffer
		list := counters(c.arrived)
		if err := check(&out, account.Totals(list), account.Verdict{Balance: account.Check(list), Moving: c.moving}); err != nil {
			t.Fatal(err)
		}
		want := "received              120  100 redirected, 20 passed\n" +
			"sent by endpoints     3    3 dropped\n" +
			"sent for endpoints    0    -\n"
		if !bytes.HasPrefix(out.Bytes(), []byte(want)) || !bytes.HasSuffix(out.Bytes(), []byte("counted as lost: "+c.want+"\n")) {
			t.Errorf("%s", out.String())
		}
	}
}
