//go:build linux

package protocol

import (
	"strings"
	"testing"
)

// Requests that encoding/json would accept although they are ambiguous, or would do much work for, are refused.
func TestMalformedRequestsAreRefused(t *testing.T) {
	for _, c := range []struct{ record, says string }{
		{`{"v":1,"id":1,"id":2,"op":"list"}`, `"id" comes twice`},
		{`{"v":1,"id":1,"op":"open","open":{"geometry":{"rx_size":1,"rx_size":2}}}`, `"rx_size" comes twice`},
		{`{"v":1,"id":1,"op":"list","op":"list"}`, `"op" comes twice`},
		{`{"v":1,"ID":1,"op":"list"}`, `unknown field "ID"`},
		{`{"v":1,"id":1,"Op":"list"}`, `unknown field "Op"`},
		{`{"v":1,"id":1,"op":"open","open":{"Attach":"queue"}}`, `unknown field "Attach"`},
		{`{"v":1,"id":1,"op":"re` + "\xff" + `olve","addr":"10.0.0.2"}`, "not UTF-8"},
		{`{"v":1,"id":1,"op":"open","open":` + strings.Repeat(`{"a":`, 7) + `1` + strings.Repeat(`}`, 8), "unknown field"},
		{`{"v":1,"id":1,"op":"open","open":` + strings.Repeat(`{"a":`, 8) + `1` + strings.Repeat(`}`, 9), "inside one another"},
		{strings.Repeat("[", 100000), "inside one another"},
		{`{"v":1,"id":1,"op":"open","open":` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + `}`, "inside one another"},
		{`{"v":1,"id":18446744073709551616,"op":"list"}`, "18446744073709551616"},
		{`{"v":1,"id":1e3,"op":"list"}`, "1e3"},
		{`{"v":1,"id":1.5,"op":"list"}`, "1.5"},
		{`{"v":1e999,"id":1,"op":"list"}`, "1e999"},
		{`{"v":1,"id":` + strings.Repeat("9", 60000) + `,"op":"list"}`, ""},
		{`{"v":1,"id":1,"op":"list","after":-1}`, "-1"},
		{`{"v":1,"id":01,"op":"list"}`, "invalid"},
		{`{"v":1,"id":1,"op":"list",}`, "invalid"},
		{`{"v":1 "id":1,"op":"list"}`, "invalid"},
		{`{"v":1,"id":1,"op":"list"`, "EOF"},
		{`{"v":1,"id":1,"op":"list"}]`, ""},
		{`{"v":1,"id":1,"op":"list"}{}`, "more than one"},
		{"\xef\xbb\xbf" + `{"v":1,"id":1,"op":"list"}`, "invalid"},
	} {
		r, err := ParseRequest([]byte(c.record))
		if err == nil {
			_, err = r.Operation()
		}
		name := c.record[:min(len(c.record), 80)]
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %.300v, want %q", name, err, c.says)
		}
	}
	many := `{"v":1`
	for i := range 40 {
		many += `,"` + strings.Repeat("x", i+1) + `":1`
	}
	if _, err := ParseRequest([]byte(many + "}")); err == nil || !strings.Contains(err.Error(), "more than 32 fields") {
		t.Errorf("40 fields: %v", err)
	}
	for _, record := range []string{
		`{"v":1,"id":1,"op":"open","open":{"tags":["msg:1","msg:1"],"geometry":{"rx_size":2048,"tx_size":2048}}}`,
		`{"v":1,"id":1,"op":"claim","tag":"msg:1"}`,
		"\t{ \"v\" : 1 , \"op\" : \"list\" , \"id\" : 18446744073709551615 , \"after\" : 0 }\r\n",
	} {
		if _, err := ParseRequest([]byte(record)); err != nil {
			t.Errorf("%s: %v", record, err)
		}
	}
}
