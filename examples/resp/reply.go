package main

import "strconv"

// Replies of RESP2.

func appendStatus(out []byte, s string) []byte {
	return append(append(append(out, '+'), s...), "\r\n"...)
}

func appendError(out []byte, s string) []byte {
	return append(append(append(out, '-'), s...), "\r\n"...)
}

func appendInt(out []byte, n int64) []byte { return appendHead(out, ':', n) }

func appendArray(out []byte, n int) []byte { return appendHead(out, '*', int64(n)) }

// appendBulk appends a bulk string.
func appendBulk[T string | []byte](out []byte, b T) []byte {
	return append(append(appendHead(out, '$', int64(len(b))), b...), "\r\n"...)
}

// appendNil appends the null bulk string.
func appendNil(out []byte) []byte { return append(out, "$-1\r\n"...) }

func appendHead(out []byte, kind byte, n int64) []byte {
	return append(strconv.AppendInt(append(out, kind), n, 10), "\r\n"...)
}
