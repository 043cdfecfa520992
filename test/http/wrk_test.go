package http_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/test/internal/unetd"
)

var wrkRequests = regexp.MustCompile(`(\d+) requests in`)

// TestWrk: every request on 64 connections is answered, and the two sides have
// counted the same.
func TestWrk(t *testing.T) {
	const connections = 64
	unetd.Tool(t, "wrk")
	s := startServer(t, netlab.RequirePair(t, netlab.Config{}), unetd.Everything)
	out, err := s.on(t, "wrk", "--threads", "2", "--connections", strconv.Itoa(connections), "--duration", "2s", "--latency", s.url+"/bytes/100")
	if err != nil {
		t.Fatalf("wrk: %v", err)
	}
	t.Log(out)
	for _, bad := range []string{"Socket errors", "Non-2xx"} {
		if strings.Contains(out, bad) {
			t.Errorf("wrk reports %s", bad)
		}
	}
	m := wrkRequests.FindStringSubmatch(out)
	if m == nil {
		t.Fatal("wrk does not say how many requests it made")
	}
	theirs, _ := strconv.Atoi(m[1])
	ours, _ := s.stop(t)
	// At the end wrk leaves at most one request of each connection unanswered.
	if theirs == 0 || ours < theirs || ours > theirs+connections {
		t.Errorf("wrk has %d answers, the server counted %d requests", theirs, ours)
	}
}
