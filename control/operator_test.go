//go:build linux

package control

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/protocol"
	. "github.com/unet-go/unet/internal/protocoltest"
)

// Answers to list that make List fail.
func TestUnusableAnswersToList(t *testing.T) {
	for _, c := range []struct {
		record string
		err    error
		text   string
	}{
		{`{"v":1,"id":1,"endpoints":[{"id":2},{"id":2}]}`, protocol.ErrProtocol, "after"},
		{`{"v":1,"id":1,"endpoints":[{"id":2},{"id":1}],"more":true}`, protocol.ErrProtocol, "after"},
		{`{"v":1,"id":1,"endpoints":null}`, protocol.ErrProtocol, ""},
		{`{"v":1,"id":1,"counters":[]}`, protocol.ErrProtocol, ""},
		{`{"v":1,"id":1,"endpoints":[],"error":{"code":"x","message":"y"}}`, protocol.ErrProtocol, ""},
		{`{"v":1,"id":0,"error":{"code":"busy","message":"too many endpoints"}}`, endpoint.ErrBusy, "too many endpoints"},
		{`{"v":1,"event":"closed","message":"enough"}`, nil, "enough"},
		{`{"v":1,"id":1,"error":{"code":"protocol","message":"version"}}`, protocol.ErrProtocol, "version"},
	} {
		socket, ln := Listen(t)
		done := make(chan struct{})
		go func() {
			defer close(done)
			conn, err := ln.AcceptUnix()
			if err != nil {
				return
			}
			defer closeAfterReading(conn)
			if _, err := conn.Read(make([]byte, protocol.MaxRecord)); err == nil {
				SendAll(t, conn, c.record, nil, 0)
			}
		}()
		_, err := Operator{Socket: socket}.List(context.Background())
		if err == nil || c.err != nil && !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %v, %q", c.record, err, c.err, c.text)
		}
		Await(t, "unetd", done)
	}
}
