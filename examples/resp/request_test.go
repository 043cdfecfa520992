package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// parse reads all requests in a string, and returns the error that ends them.
func parse(r io.Reader) (requests [][]string, err error) {
	p := parser{Reader: bufio.NewReaderSize(r, bufferSize)}
	for {
		args, err := p.next()
		if err != nil {
			return requests, err
		}
		if len(args) == 0 {
			continue
		}
		request := []string{}
		for _, arg := range args {
			request = append(request, string(arg))
		}
		requests = append(requests, request)
	}
}

// encode is a request as clients send it.
func encode(args ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, arg := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(arg), arg)
	}
	return b.String()
}

func TestRequests(t *testing.T) {
	long := strings.Repeat("0123456789abcdef", 10*readStep/16)
	for _, c := range []struct {
		name, in string
		want     [][]string
		err      string
	}{
		{"arrays", "*1\r\n$4\r\nPING\r\n*2\r\n$4\r\necho\r\n$0\r\n\r\n", [][]string{{"PING"}, {"echo", ""}}, "EOF"},
		{"any bytes", encode("set", "\r\n\x00", long), [][]string{{"set", "\r\n\x00", long}}, "EOF"},
		{"nothing at all", "\r\n\n*0\r\n*-1\r\n  \r\nPING\r\n", [][]string{{"PING"}}, "EOF"},
		{"words", "set  key\tvalue\r\nget key\n", [][]string{{"set", "key", "value"}, {"get", "key"}}, "EOF"},
		{"quoted", `set "a b\n\x41\"" 'c d\'\n' ""` + "\r\n", [][]string{{"set", "a b\nA\"", `c d'\n`, ""}}, "EOF"},
		{"a backslash that means nothing", `echo "\q\xZZ" a\nb` + "\n", [][]string{{"echo", "qxZZ", `a\nb`}}, "EOF"},
		{"cut in an array", encode("get", "key")[:15], nil, "unexpected EOF"},
		{"cut in a word", "PI", nil, "unexpected EOF"},
		{"cut before the CRLF", "*1\r\n$4\r\nPING\r", nil, "unexpected EOF"},
		{"a quote that stays open", "echo \"a\r\n", nil, "Protocol error: unbalanced quotes in request"},
		{"a quote within a word", "echo \"a\"b\r\n", nil, "Protocol error: unbalanced quotes in request"},
		{"a line without end", strings.Repeat("x", bufferSize+1), nil, "Protocol error: too big inline request"},
		{"no number of arguments", "*x\r\n", nil, "Protocol error: invalid multibulk length"},
		{"a number that goes on", "*+1\r\n", nil, "Protocol error: invalid multibulk length"},
		{"too many arguments", "*1048577\r\n", nil, "Protocol error: invalid multibulk length"},
		{"very many arguments", "*99999999999999999999\r\n", nil, "Protocol error: invalid multibulk length"},
		{"an endless number of arguments", "*" + strings.Repeat("1", bufferSize), nil, "Protocol error: too big multibulk count string"},
		{"not a bulk string", "*1\r\n:1\r\n", nil, "Protocol error: expected '$', got ':'"},
		{"not even a letter", "*1\r\n\r\n", nil, "Protocol error: expected '$', got '?'"},
		{"a negative length", "*1\r\n$-1\r\n", nil, "Protocol error: invalid bulk length"},
		{"a length without CR", "*1\r\n$4\nPING\r\n", nil, "Protocol error: invalid bulk length"},
		{"too long", "*1\r\n$67108865\r\n", nil, "Protocol error: invalid bulk length"},
		{"too long together", "*2\r\n$1\r\nx\r\n$67108864\r\n", nil, "Protocol error: invalid bulk length"},
		{"longer than it says", "*1\r\n$4\r\nPINGS\r\n", nil, "Protocol error: no CRLF after a bulk string"},
	} {
		for name, r := range map[string]io.Reader{"at once": strings.NewReader(c.in), "byte by byte": iotest.OneByteReader(strings.NewReader(c.in))} {
			got, err := parse(r)
			if !slices.EqualFunc(got, c.want, slices.Equal) || err.Error() != c.err {
				t.Errorf("%s, %s: %.200q, %v; want %.200q, %s", c.name, name, got, err, c.want, c.err)
			}
		}
	}
}

// Bytes that were announced and not received take no memory.
func TestAnnouncedTakesNoMemory(t *testing.T) {
	p := parser{Reader: bufio.NewReader(strings.NewReader("*1000000\r\n$60000000\r\nx"))}
	if _, err := p.next(); err != io.ErrUnexpectedEOF {
		t.Fatal(err)
	}
	if cap(p.data) > 2*readStep || cap(p.ends) > 10 {
		t.Errorf("%d bytes and %d arguments of memory for a single byte", cap(p.data), cap(p.ends))
	}
}

func TestParseInt(t *testing.T) {
	for in, want := range map[string]int64{
		"0": 0, "7": 7, "-1": -1, "9223372036854775807": 1<<63 - 1, "-9223372036854775808": -1 << 63,
	} {
		if n, ok := parseInt([]byte(in)); !ok || n != want {
			t.Errorf("%s is %d, %t", in, n, ok)
		}
	}
	for _, in := range []string{"", "-", "+1", "01", "-0", " 1", "1 ", "1.0", "9223372036854775808", "-9223372036854775809", "99999999999999999999"} {
		if n, ok := parseInt([]byte(in)); ok {
			t.Errorf("%q is %d", in, n)
		}
	}
}

// FuzzRequests: any input is read in the same way however it is cut into segments. Its
// arguments are together no longer than the input. Encoded and read again they are the same.
func FuzzRequests(f *testing.F) {
	f.Add([]byte(encode("set", "key", "value") + encode("get", "key")))
	f.Add([]byte("PING\r\nset \"a\\x41\" 'b'\r\n*0\r\n"))
	f.Add([]byte("*2\r\n$3\r\nget\r\n$-1\r\n"))
	f.Add([]byte("*1\r\n$4\r\nPINGS\r\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		got, err := parse(bytes.NewReader(in))
		slowly, slowErr := parse(iotest.OneByteReader(bytes.NewReader(in)))
		if !slices.EqualFunc(got, slowly, slices.Equal) || err.Error() != slowErr.Error() {
			t.Fatalf("at once %q, %v; byte by byte %q, %v", got, err, slowly, slowErr)
		}
		var again strings.Builder
		size := 0
		for _, args := range got {
			again.WriteString(encode(args...))
			for _, arg := range args {
				size += len(arg)
			}
		}
		if size > len(in) {
			t.Fatalf("%d bytes of arguments in %d bytes", size, len(in))
		}
		if same, err := parse(strings.NewReader(again.String())); err != io.EOF || !slices.EqualFunc(got, same, slices.Equal) {
			t.Fatalf("sent again: %q, %v; want %q", same, err, got)
		}
	})
}
