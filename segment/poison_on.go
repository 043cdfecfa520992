//go:build unetdebug

package segment

import "fmt"

const poisoning = true

const pattern = 0xdb // "dead buffer"

func (s *Segment) frameBytes(frame uint32) []byte {
	start := int(frame) << s.shift
	return s.mem[start : start+1<<s.shift]
}

func (s *Segment) poison(frame uint32) {
	b := s.frameBytes(frame)
	for i := range b {
		b[i] = pattern
	}
}

func (s *Segment) checkPoison(frame uint32) {
	for i, v := range s.frameBytes(frame) {
		if v != pattern {
			panic(fmt.Sprintf("BUG: frame %d was written at byte %d after it was freed", frame, i))
		}
	}
}
