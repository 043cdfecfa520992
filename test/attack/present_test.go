package attack

import (
	"fmt"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/test/internal/unetd"
)

const presentRecord = `{"v":1,"id":1,"op":"present"}`

func presentCases() []attackCase {
	return []attackCase{
		{"present what is not one's own", "the neighbour's XSK, which its process has handed over; an own live one, once and twice; the memfd, a UDP socket, /dev/null; none and two", func(s *scene) {
			t := s.target(endpoint.Request{})
			victim := cast(s, s.pair.A, neighbourID)
			theirs := openGun.do(s, victim, openArg{s.unetd.Socket, endpoint.Request{}})
			name := fmt.Sprintf("unet-attack-%d", t.pid())
			await.do(s, t.actor, name)
			handOver.do(s, victim, handArg{theirs.Gun, name})
			stolen := borrow.do(s, t.actor, nothing{})
			var what []string
			var outcomes []talked
			for _, c := range []struct {
				what  string
				files []int
			}{
				{"the neighbour's XSK", []int{stolen}},
				{"an own live XSK", []int{t.Gun}},
				{"an own live XSK again", []int{t.Gun}},
				{"an own live XSK twice at once", []int{t.Gun, t.Gun}},
				{"own and stolen", []int{t.Gun, stolen}},
				{"a UDP socket", []int{udpSocket}},
				{"a memfd", []int{memfd}},
				{"/dev/null", []int{anyFile}},
				{"nothing", nil},
			} {
				r := record{Text: presentRecord, Descriptors: c.files}
				outcome := talk.do(s, t.actor, talkArg{Socket: s.unetd.Socket, Records: []record{r}})
				what, outcomes = append(what, c.what), append(outcomes, outcome)
			}
			s.ended(what, outcomes)
			if !s.leased(theirs.ID) || !s.leased(t.ID) {
				s.Error("a lease has ended by it")
			}
			t.answers(s)

			// What was handed over is of no use when its owner is dead, either.
			victim.kill()
			if !unetd.Eventually(func() bool { return !s.leased(theirs.ID) }) {
				s.Error("the victim's lease goes on after its death")
			}
			outcome := talk.do(s, t.actor, talkArg{Socket: s.unetd.Socket, Records: []record{{Text: presentRecord, Descriptors: []int{stolen}}}})
			s.ended([]string{"a dead one's XSK"}, []talked{outcome})
		}},
	}
}
