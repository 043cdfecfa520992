package kv

import (
	"encoding/binary"
	"errors"
)

// info is where the table is: the private data with which the server accepts a connection.
type info struct {
	addr     uint64
	rkey     uint32
	slots    int
	slotSize int
}

// magic begins the private data. It changes with the format of the table or of the messages.
const magic = "rkv1"

const infoLen = 4 + 8 + 4 + 4 + 4

func (i info) append(b []byte) []byte {
	be := binary.BigEndian
	b = append(b, magic...)
	b = be.AppendUint64(b, i.addr)
	b = be.AppendUint32(b, i.rkey)
	b = be.AppendUint32(b, uint32(i.slots))
	return be.AppendUint32(b, uint32(i.slotSize))
}

func parseInfo(b []byte) (i info, err error) {
	be := binary.BigEndian
	if len(b) < infoLen || string(b[:4]) != magic {
		return i, errors.New("the peer is no rkv server of this version")
	}
	i = info{be.Uint64(b[4:]), be.Uint32(b[12:]), int(be.Uint32(b[16:])), int(be.Uint32(b[20:]))}
	if !validSlots(i.slots, i.slotSize) {
		return i, errors.New("the server's table has an impossible size")
	}
	return i, nil
}

// maxSlot bounds the size of a slot, in bytes.
const maxSlot = 1 << 20

func validSlots(slots, size int) bool {
	return slots > 0 && slots < 1<<31 && size > overhead && size <= maxSlot && size%8 == 0
}

// A request is its kind, the length of the key in 2 bytes, the key and the value. The answer is
// a status.
const (
	putRequest = iota
	deleteRequest
)

const requestHeader = 3

type status uint8

const (
	statusOK status = iota
	statusNotFound
	statusFull
	statusTooLong
	statusBadRequest
)

func appendRequest(b []byte, kind byte, key string, value []byte) []byte {
	b = append(b, kind)
	b = binary.BigEndian.AppendUint16(b, uint16(len(key)))
	b = append(b, key...)
	return append(b, value...)
}

func parseRequest(b []byte) (kind byte, key string, value []byte, ok bool) {
	if len(b) < requestHeader {
		return 0, "", nil, false
	}
	n := requestHeader + int(binary.BigEndian.Uint16(b[1:]))
	if n > len(b) {
		return 0, "", nil, false
	}
	return b[0], string(b[requestHeader:n]), b[n:], true
}
