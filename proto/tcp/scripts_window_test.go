package tcp

import (
	"testing"
	"time"
)

func TestWindow(t *testing.T) {
	runScripts(t, []script{
		{name: "no more than the window", cfg: noOptions, opts: Options{Cork: -1}, text: `
			both:
			< A 1:0 ack 1 win 1000
			write 2000
			> A 1:536 ack 1
			> nothing		# 464 are less than a segment and less than half the window
			< A 1:0 ack 537 win 1000
			> A 537:536 ack 1`},
		{name: "half the largest window is worth a segment", cfg: noOptions, opts: Options{Cork: -1}, text: `
			dial
			> S 0:0
			< SA 0:0 ack 1 win 1000 mss 1460
			> A 1:0 ack 1
			write 3000
			> A 1:1000 ack 1
			< A 1:0 ack 1001 win 500
			> A 1001:500 ack 1
			< A 1:0 ack 1501 win 499
			> nothing
			timer 5ms		# silly, so the persist timer runs
			+5ms
			> A 1501:499 ack 1	# and overrides`},
		{name: "a smaller buffer takes nothing back", cfg: noOptions, text: `
			both:
			buffers 4096
			< A 1:100 ack 1
			> A 1:0 ack 101 win 65435`},
		{name: "a closed window is probed for ever while it is answered", cfg: noOptions, opts: Options{UserTimeout: 100 * time.Second}, text: `
			both:
			< A 1:0 ack 1 win 0
			write 100
			> nothing
			timer 5ms
			+5ms
			> A 1:1 ack 1
			< A 1:0 ack 1 win 0
			timer 10ms
			+10ms
			> A 1:1 ack 1
			< A 1:0 ack 1 win 0
			+20ms
			> A 1:1 ack 1
			+40ms
			> A 1:1 ack 1
			+80ms
			> A 1:1 ack 1
			+160ms
			> A 1:1 ack 1
			+320ms
			> A 1:1 ack 1
			+640ms
			> A 1:1 ack 1
			+1280ms
			> A 1:1 ack 1
			+2560ms
			> A 1:1 ack 1
			+5120ms
			> A 1:1 ack 1
			+10240ms
			> A 1:1 ack 1
			+20480ms
			> A 1:1 ack 1
			< A 1:0 ack 1 win 0
			+40960ms
			> A 1:1 ack 1
			< A 1:0 ack 1 win 0
			+59s
			> nothing
			< A 1:0 ack 1 win 1000
			> PA 1:100 ack 1
			< A 1:0 ack 101 win 1000
			timer never
			count window_probes 14`},
		{name: "a probe that is taken", cfg: noOptions, text: `
			both:
			< A 1:0 ack 1 win 0
			write 100
			+5ms
			> A 1:1 ack 1
			< A 1:0 ack 2 win 0
			+5ms
			> A 2:1 ack 1
			< A 1:0 ack 2 win 1000
			> PA 2:99 ack 1`},
		{name: "a probe that nobody answers", cfg: noOptions, opts: Options{UserTimeout: 20 * time.Millisecond}, text: `
			both:
			< A 1:0 ack 1 win 0
			write 100
			+5ms
			> A 1:1 ack 1
			+10ms
			> A 1:1 ack 1
			+5ms
			> RA 2:0 ack 1
			err ETIMEDOUT`},
		{name: "the window closes behind what is in flight", cfg: noOptions, text: `
			both:
			write 100
			> PA 1:100 ack 1
			< A 1:0 ack 1 win 0	# taken back, which should not be done (3.8.6)
			+5ms
			> A 1:1 ack 1
			< A 1:0 ack 1 win 0
			+10ms
			> A 1:1 ack 1
			< A 1:0 ack 1 win 1000
			> PA 1:100 ack 1
			count timeouts 0`},
		{name: "a window that shrinks", cfg: noOptions, opts: Options{Cork: -1, UserTimeout: 25 * time.Millisecond}, text: `
			both:
			write 1608
			> A 1:536 ack 1
			> A 537:536 ack 1
			> PA 1073:536 ack 1
			write 10
			> PA 1609:10 ack 1
			< A 1:0 ack 537 win 600	# up to 1136
			write 10
			> nothing		# that would be new
			+5ms
			> A 537:536 ack 1	# what it still takes, again
			< A 1:0 ack 1073 win 0
			+10ms
			> A 1073:1 ack 1	# what it takes no more is not lost, and may wait
			< A 1:0 ack 1073 win 0
			+20ms
			> A 1073:1 ack 1
			< A 1:0 ack 1073 win 0
			+4ms			# more than the user timeout since it shrank
			state ESTABLISHED
			< A 1:0 ack 1073 win 5000
			> A 1073:536 ack 1
			> PA 1609:20 ack 1`},
		{name: "a closed window does not keep what nobody has", cfg: noOptions, opts: Options{UserTimeout: 20 * time.Millisecond}, text: `
			both:
			< A 1:0 ack 1 win 0
			write 100
			close
			+5ms
			> A 1:1 ack 1
			< A 1:0 ack 1 win 0
			+10ms
			> A 1:1 ack 1
			< A 1:0 ack 1 win 0
			+4ms
			state FIN-WAIT-1
			+1ms
			> RA 2:0 ack 1
			state CLOSED`},
		{name: "a FIN waits for the window", cfg: noOptions, text: `
			both:
			< A 1:0 ack 1 win 0
			closewrite
			state FIN-WAIT-1
			+5ms
			> FA 1:0 ack 1
			< A 1:0 ack 2 win 0
			state FIN-WAIT-2
			timer never`},
		{name: "an old segment does not bring an old window back", cfg: noOptions, text: `
			both:
			< A 11:0 ack 1 win 0
			< A 1:0 ack 1 win 1000
			write 10
			> nothing`},
		{name: "but one that acknowledges something new brings its window", cfg: noOptions, opts: Options{Cork: -1}, text: `
			both:
			write 1072
			> A 1:536 ack 1
			> PA 537:536 ack 1
			< A 101:100 ack 1 win 3000
			> A 1073:0 ack 1
			< A 1:100 ack 1073 win 1000	# sent again, so it stands before that one
			> A 1073:0 ack 201
			write 2000
			> A 1073:536 ack 201
			> nothing			# 464 more, and no further, is silly
			+5ms
			> A 1073:536 ack 201`},
		{name: "window scale", cfg: Config{NoTimestamps: true, NoSACK: true}, opts: Options{ReceiveBuffer: 1 << 20, Cork: -1}, text: `
			dial
			> S 0:0 ws 5 win 65535
			< SA 0:0 ack 1 ws 2 win 500
			> A 1:0 ack 1 win 32768
			< A 1:0 ack 1 win 300
			write 1300
			> A 1:536 ack 1
			> A 537:536 ack 1
			> nothing
			< A 1:0 ack 1 win 400
			> PA 1073:228 ack 1`},
		{name: "a window that the scale cannot say is rounded up", cfg: Config{NoTimestamps: true, NoSACK: true}, opts: Options{ReceiveBuffer: 1 << 20}, text: `
			dial
			> S 0:0 ws 5
			< SA 0:0 ack 1 ws 2
			> A 1:0 ack 1 win 32768
			< A 1:1 ack 1
			> A 1:0 ack 2 win 32768	# down, and the right edge would have moved left
			< A 2:62 ack 1
			> A 1:0 ack 64 win 32767`},
		{name: "a scale above 14 is 14", cfg: Config{NoTimestamps: true, NoSACK: true}, text: `
			dial
			> S 0:0 ws 7
			< SA 0:0 ack 1 ws 200 win 0
			> A 1:0 ack 1
			< A 1:0 ack 1 win 1
			write 20000
			> A 1:536 ack 1
			> A 537:536 ack 1
			> A 1073:536 ack 1
			> A 1609:536 ack 1
			> A 2145:536 ack 1
			> A 2681:536 ack 1
			> A 3217:536 ack 1
			> A 3753:536 ack 1
			> A 4289:536 ack 1
			> A 4825:536 ack 1`},
		{name: "our window closes and opens", cfg: noOptions, opts: Options{ReceiveBuffer: 3000}, text: `
			both:
			< A 1:1400 ack 1
			> A 1:0 ack 1401 win 1600
			< A 1401:1600 ack 1
			> A 1:0 ack 3001 win 0
			< A 3001:1 ack 1	# a probe
			> A 1:0 ack 3001 win 0
			read 100 = 100
			> nothing		# silly
			< A 3001:1 ack 1
			> A 1:0 ack 3001 win 0	# still
			read 1000 = 1000
			> nothing
			read 900 = 900
			> A 1:0 ack 3001 win 2000
			< A 3001:100 ack 1
			> A 1:0 ack 3101 win 1900
			count beyond_window 2`},
		{name: "text beyond the window is cut, the FIN with it", cfg: noOptions, opts: Options{ReceiveBuffer: 2048}, text: `
			both:
			< FA 1:3000 ack 1
			> A 1:0 ack 2049 win 0
			state ESTABLISHED
			count beyond_window 952
			read 5000 = 2048
			> A 1:0 ack 2049 win 2048
			< FA 2049:952 ack 1
			> A 1:0 ack 3002
			state CLOSE-WAIT`},
		{name: "to a closed window only what it stands for counts", cfg: noOptions, opts: Options{ReceiveBuffer: 2048}, text: `
			both:
			write 10
			> PA 1:10 ack 1
			< A 1:2048 ack 1
			> A 11:0 ack 2049 win 0
			< A 2049:10 ack 11	# its ACK does
			> A 11:0 ack 2049 win 0
			timer never
			< R 2049:0
			state CLOSED`},
	})
}
