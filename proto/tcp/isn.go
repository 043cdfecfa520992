package tcp

import (
	"time"

	"github.com/unet-go/unet/proto/tcp/seq"
)

// isnTick is the clock of initial sequence numbers (RFC 9293, section 3.4.1).
const isnTick = 4 * time.Microsecond

// isn is the initial sequence number of a connection that begins now (RFC
// 6528): M + F(both ends, secret). For one pair of ends the numbers rise with
// the clock, so that a new incarnation begins after the last; and a stranger
// cannot tell from one pair's numbers what another's are.
func (t *Table) isn(now Time, id tuple) seq.Number {
	m := uint32(uint64(now) / uint64(isnTick))
	return seq.New(m + uint32(t.hash.sum(useISN, id.local, id.remote)))
}

// timestampOffset is what the timestamps of a pair of ends are ahead of the
// clock (RFC 7323, section 5.4). It tells nobody how long the host has been up,
// and is the same for each incarnation of the pair, so that RFC 6191 works.
func (t *Table) timestampOffset(id tuple) uint32 {
	return uint32(t.hash.sum(useTimestamp, id.local, id.remote))
}
