package tcp

import "github.com/unet-go/unet/proto/tcp/seq"

// scoreboard records the sequence numbers from SND.UNA to SND.NXT, sent and not
// acknowledged, in order: spans that were sent at about the same time and have the same
// marks. Data that was sent last, at the time at, has no span until later data is sent or
// complete is called, so a request that is answered needs none. maxSpans bounds the spans
// that a peer can cause by SACK blocks.
type scoreboard struct {
	head, tail *span
	end        seq.Number // where the spans end, SND.UNA if there are none; data sent at the time at begins there
	at         Time
	spans      int
	sacked     int // bytes that the peer has SACKed
	lost       int // bytes that are lost and not yet sent again
	guessed    int // without SACK: bytes that the peer has received according to its duplicate ACKs
	delivered  int // bytes that the current ACK is the first to report as received
}

// span begins where the previous one ends; the first begins at SND.UNA.
type span struct {
	next  *span
	at    Time // when it was last sent
	end   seq.Number
	marks marks
}

type marks uint8

const (
	sacked marks = 1 << iota // SACKed
	lost                     // lost, and to be sent again
	again                    // has been sent again
)

// sentGrain is the resolution of send times: 2^-6 of a round trip, a sixteenth of the least
// reordering window.
const sentGrain = 6

// maxSpans bounds the spans of a scoreboard: SACK blocks that need more are ignored. If
// retransmissions need more, spans with different send times are merged. Between two merges
// there may be a quarter more.
const maxSpans = 1024

// spanPool is the free spans of a table.
type spanPool struct {
	free *span
	n    int
}

const maxFreeSpans = 4096

func (p *spanPool) get() *span {
	s := p.free
	if s == nil {
		return new(span)
	}
	p.free = s.next
	p.n--
	return s
}

func (p *spanPool) put(s *span) {
	if p.n < maxFreeSpans {
		s.next = p.free
		p.free = s
		p.n++
	}
}

// complete adds the span of the data that was sent last, before all spans are examined.
func (c *Conn) complete() {
	if b := &c.board; b.end != c.sndNxt {
		b.append(&c.table.spans, b.at, c.sndNxt)
	}
}

// append adds a span up to end.
func (b *scoreboard) append(p *spanPool, at Time, end seq.Number) {
	b.end = end
	if s := b.tail; s != nil && s.marks == 0 && b.spans >= maxSpans {
		s.end, s.at = end, at
		return
	}
	s := p.get()
	s.next, s.at, s.end, s.marks = nil, at, end, 0
	if b.tail == nil {
		b.head = s
	} else {
		b.tail.next = s
	}
	b.tail = s
	b.spans++
}

// drop removes the first span.
func (b *scoreboard) drop(p *spanPool) {
	s := b.head
	if b.head = s.next; b.head == nil {
		b.tail = nil
	}
	b.spans--
	p.put(s)
}

// clear removes all spans. una is SND.UNA.
func (b *scoreboard) clear(p *spanPool, una seq.Number) {
	for b.head != nil {
		b.drop(p)
	}
	b.end = una
	b.sacked, b.lost, b.guessed = 0, 0, 0
}

// split divides s at the number at. The second part is the next span.
func (b *scoreboard) split(p *spanPool, s *span, at seq.Number) {
	r := p.get()
	*r = *s
	s.next, s.end = r, at
	if b.tail == s {
		b.tail = r
	}
	b.spans++
}

// merge joins neighbours with the same marks: SACKed or lost ones, and those that were
// sent again at the same time. While there are more than maxSpans it joins others with the
// same marks, too: they get the later of their send times, so a loss is detected later.
func (b *scoreboard) merge(p *spanPool) {
	for s := b.head; s != nil && s.next != nil; {
		n := s.next
		if s.marks != n.marks || b.spans <= maxSpans && s.marks&(sacked|lost) == 0 && (s.marks != again || s.at != n.at) {
			s = n
			continue
		}
		s.end, s.at, s.next = n.end, max(s.at, n.at), n.next
		if b.tail == n {
			b.tail = s
		}
		b.spans--
		p.put(n)
	}
}

// lose marks all that is not SACKed as lost. If the data at SND.UNA is SACKed, the peer
// has dropped it (RFC 2018, section 8), and all SACKs are forgotten.
func (b *scoreboard) lose(p *spanPool, una seq.Number) {
	keep := sacked
	if b.head != nil && b.head.marks&sacked != 0 {
		keep, b.sacked = 0, 0
	}
	b.lost, b.guessed = 0, 0
	for s, start := b.head, una; s != nil; start, s = s.end, s.next {
		if s.marks&keep == 0 {
			s.marks = s.marks&again | lost
			b.lost += int(s.end.From(start))
		}
	}
	b.merge(p)
}

// firstLost is the first lost span, and where it begins. There must be one.
func (b *scoreboard) firstLost(una seq.Number) (s *span, start seq.Number) {
	start = una
	for s = b.head; s.marks&lost == 0; s = s.next {
		start = s.end
	}
	return s, start
}

// pipe is how many bytes are in the network (RFC 6675, section 4).
func (c *Conn) pipe() int {
	b := &c.board
	return max(0, int(c.sndNxt.From(c.sndUna))-b.sacked-b.lost-b.guessed)
}

// acknowledgeSpans drops the spans before una, the new SND.UNA, and returns up to where there
// were spans, at most una. c.sndUna is still the old one.
func (c *Conn) acknowledgeSpans(now Time, g *segment, una seq.Number) seq.Number {
	b := &c.board
	start := c.sndUna
	for s := b.head; s != nil && start != una; s = b.head {
		end := s.end
		if end.After(una) {
			end = una
		}
		if s.marks&sacked != 0 {
			b.sacked -= int(end.From(start))
		} else {
			c.delivered(now, g, s, start, end)
		}
		if start = end; end == s.end {
			b.drop(&c.table.spans)
		}
	}
	return start
}

// sackSpans records that the peer has received the numbers from left to before right.
func (c *Conn) sackSpans(now Time, g *segment, left, right seq.Number) {
	b, p := &c.board, &c.table.spans
	start := c.sndUna
	for s := b.head; s != nil && start.Before(right); start, s = s.end, s.next {
		if s.marks&sacked != 0 || s.end.AtOrBefore(left) {
			continue
		}
		if (start.Before(left) || s.end.After(right)) && b.spans >= maxSpans {
			c.table.counts[SackIgnored]++
			continue
		}
		if start.Before(left) {
			b.split(p, s, left)
			continue // with the part that begins at left
		}
		if s.end.After(right) {
			b.split(p, s, right)
		}
		c.delivered(now, g, s, start, s.end)
		b.sacked += int(s.end.From(start))
		s.marks = sacked
	}
}
