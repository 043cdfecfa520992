package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// The messages of the InfiniBand communication manager (InfiniBand Architecture
// Specification, volume 1, chapters 12 and 13) as they are sent over RoCEv2: management
// datagrams (MADs) from QP 1 to QP 1, and the addressing header of the RDMA IP CM service
// (annex A11) in a REQ's private data.

const (
	// MADLen is the length of every MAD in bytes.
	MADLen = 256
	// GSIQPN is the queue pair number of the general services interface, and
	// GSIQKey the Q_Key that its packets carry.
	GSIQPN  = 1
	GSIQKey = 0x80010000

	// DefaultPKey is the partition key of RoCE.
	DefaultPKey = 0xffff

	// CMAddressLen is the length of the addressing header in bytes.
	CMAddressLen = 36

	// The private data of the messages, bytes. Shorter data is padded with zeros: the
	// wire does not carry its length.
	CMReqPrivate = 92 // with the addressing header
	CMRejPrivate = 148
	CMRepPrivate = 196
	// CMRejInfo is the most additional reject information, in bytes.
	CMRejInfo = 72

	// ServiceTCP and a port are the service ID of that port in the TCP port space.
	ServiceTCP = 0x0000000001060000

	madHeaderLen = 24
	cmVersions   = 0x01070203 // base version 1, class 7 (communication manager), its version 2, method Send
	lidRouted    = 0xffff     // permissive LID: the path has a router, or no LIDs at all
	hopLimit     = 64
)

// CMAttr is the attribute ID of a MAD, which says what message it is.
type CMAttr uint16

const (
	CMReqAttr  CMAttr = 0x10 + iota // connection request
	CMMraAttr                       // message receipt acknowledged: the answer takes longer
	CMRejAttr                       // reject
	CMRepAttr                       // reply to a REQ
	CMRtuAttr                       // ready to use: answer to a REP
	CMDreqAttr                      // disconnection request
	CMDrepAttr                      // reply to a DREQ

	CMSidrReqAttr // UD service lookup
	CMSidrRepAttr // reply to a SIDR_REQ
	CMLapAttr     // load alternate path
	CMAprAttr     // reply to a LAP
)

func (a CMAttr) String() string {
	if a < CMReqAttr || a > CMAprAttr {
		return fmt.Sprintf("attribute %#x", uint16(a))
	}
	return [...]string{"REQ", "MRA", "REJ", "REP", "RTU", "DREQ", "DREP", "SIDR_REQ", "SIDR_REP", "LAP", "APR"}[a-CMReqAttr]
}

// CM is a MAD of the communication manager:
//
//	versions, class, method(4) status(2) class specific(2) transaction ID(8)
//	attribute ID(2) reserved(2) attribute modifier(4)
//	communication ID of the sender(4), of the receiver(4)  message
type CM []byte

// ParseCM reads the header of a MAD. Its errors are ErrTruncated; ErrVersion for a class,
// a version or a method that is not the communication manager's; ErrLength for more than
// one MAD.
func ParseCM(b []byte) (CM, error) {
	switch {
	case len(b) < MADLen:
		return nil, ErrTruncated
	case len(b) > MADLen:
		return nil, ErrLength
	case binary.BigEndian.Uint32(b) != cmVersions:
		return nil, ErrVersion
	}
	return CM(b), nil
}

func (m CM) TransactionID() uint64 { return binary.BigEndian.Uint64(m[8:]) }
func (m CM) Attr() CMAttr          { return CMAttr(binary.BigEndian.Uint16(m[16:])) }

// LocalID is the sender's communication ID, 0 if it has none.
func (m CM) LocalID() uint32 { return binary.BigEndian.Uint32(m[madHeaderLen:]) }

// RemoteID is the receiver's communication ID, 0 if the sender does not know it. A REQ has
// none.
func (m CM) RemoteID() uint32 { return binary.BigEndian.Uint32(m[madHeaderLen+4:]) }

// PutCM writes a MAD without content: all of RTU and DREP.
func PutCM(b []byte, attr CMAttr, tid uint64, local, remote uint32) {
	b = b[:MADLen]
	clear(b)
	binary.BigEndian.PutUint32(b, cmVersions)
	binary.BigEndian.PutUint64(b[8:], tid)
	binary.BigEndian.PutUint16(b[16:], uint16(attr))
	binary.BigEndian.PutUint32(b[madHeaderLen:], local)
	binary.BigEndian.PutUint32(b[madHeaderLen+4:], remote)
}

// IsMADGet reports whether b is a MAD, of any class, that gets or sets an attribute (chapter 13).
func IsMADGet(b []byte) bool {
	const get, set = 1, 2
	return len(b) == MADLen && b[0] == 1 && (b[3] == get || b[3] == set)
}

// PutMADUnsupported writes the answer to such a MAD: its method or attribute is not supported.
func PutMADUnsupported(b, request []byte) {
	const response, unsupported = 0x81, 0x000c
	copy(b[:MADLen], request)
	b[3] = response
	binary.BigEndian.PutUint16(b[4:], unsupported)
}

// PutCMSidrUnsupported writes the answer to a SIDR_REQ: the service ID is not supported.
func PutCMSidrUnsupported(b []byte, req CM) {
	PutCM(b, CMSidrRepAttr, req.TransactionID(), req.LocalID(), 0) // the request's ID
	copy(b[madHeaderLen+12:], req[madHeaderLen+8:][:8])            // the service's
	b[madHeaderLen+4] = 1
}

// CMAprStatus is what an APR says about a LAP.
type CMAprStatus uint8

const (
	CMAprInvalidCommID CMAprStatus = 1
	CMAprUnsupported   CMAprStatus = 2 // alternate paths are
)

// PutCMApr writes an APR.
func PutCMApr(b []byte, tid uint64, local, remote uint32, s CMAprStatus) {
	PutCM(b, CMAprAttr, tid, local, remote)
	b[madHeaderLen+9] = byte(s)
}

// CMTransport is the transport service of a connection.
type CMTransport uint8

const (
	CMTransportRC CMTransport = iota
	CMTransportUC
)

// CMReq is the content of a REQ. An alternate path is not read. LIDs, subnet local, service
// level and hop limit are written as on a routed path: RoCE has no LIDs. Timeouts are
// exponents n of 4.096 µs · 2^n, from 0 to 31.
type CMReq struct {
	ServiceID          uint64
	GUID               uint64 // of the sender's channel adapter
	QPN                uint32
	PSN                uint32 // the first that the receiver of the REQ is to send (chapter 12)
	ResponderResources uint8  // READs and atomics that the sender's queue pair serves at a time
	InitiatorDepth     uint8  // that it wants to have outstanding
	Transport          CMTransport
	RemoteTimeout      uint8 // in which the receiver is expected to answer
	LocalTimeout       uint8 // in which the sender answers
	MaxRetries         uint8 // of a message of the communication manager, 0 to 15
	RetryCount         uint8 // of the queue pair, 0 to 7
	RNRRetry           uint8 // 0 to 7
	SRQ                bool  // the sender's queue pair has a shared receive queue
	PKey               uint16
	PathMTU            uint8      // 1: 256 bytes … 5: 4096 bytes
	AckTimeout         uint8      // of the queue pair
	Src, Dst           netip.Addr // GIDs; IPv4 is mapped to IPv6
	Flow               uint32     // flow label (20 bits), reserved (6), rate (6)
	TrafficClass       uint8
	Private            []byte
}

// Req reads a REQ.
func (m CM) Req() (r CMReq) {
	b := m[madHeaderLen:]
	r.ServiceID = binary.BigEndian.Uint64(b[8:])
	r.GUID = binary.BigEndian.Uint64(b[16:])
	r.QPN, r.ResponderResources = split24(b[32:])
	_, r.InitiatorDepth = split24(b[36:])
	r.RemoteTimeout, r.Transport = b[43]>>3, CMTransport(b[43]>>1&3)
	r.PSN, r.LocalTimeout = split24(b[44:])
	r.LocalTimeout, r.RetryCount = r.LocalTimeout>>3, r.LocalTimeout&7
	r.PKey = binary.BigEndian.Uint16(b[48:])
	r.PathMTU, r.RNRRetry = b[50]>>4, b[50]&7
	r.MaxRetries, r.SRQ = b[51]>>4, b[51]&8 != 0
	r.Src, r.Dst = netip.AddrFrom16([16]byte(b[56:])), netip.AddrFrom16([16]byte(b[72:]))
	r.Flow = binary.BigEndian.Uint32(b[88:])
	r.TrafficClass, r.AckTimeout = b[92], b[95]>>3
	r.Private = b[140:]
	return r
}

// PutCMReq writes a REQ. The fields must be in their ranges.
func PutCMReq(b []byte, tid uint64, local uint32, r *CMReq) {
	PutCM(b, CMReqAttr, tid, local, 0)
	b = b[madHeaderLen:MADLen]
	binary.BigEndian.PutUint64(b[8:], r.ServiceID)
	binary.BigEndian.PutUint64(b[16:], r.GUID)
	join24(b[32:], r.QPN, r.ResponderResources)
	join24(b[36:], 0, r.InitiatorDepth)
	b[43] = r.RemoteTimeout<<3 | byte(r.Transport)<<1
	join24(b[44:], r.PSN, r.LocalTimeout<<3|r.RetryCount)
	binary.BigEndian.PutUint16(b[48:], r.PKey)
	b[50], b[51] = r.PathMTU<<4|r.RNRRetry, r.MaxRetries<<4|flag(r.SRQ, 8)
	binary.BigEndian.PutUint32(b[52:], lidRouted<<16|lidRouted)
	src, dst := r.Src.As16(), r.Dst.As16()
	copy(b[56:], src[:])
	copy(b[72:], dst[:])
	binary.BigEndian.PutUint32(b[88:], r.Flow)
	b[92], b[93], b[95] = r.TrafficClass, hopLimit, r.AckTimeout<<3
	copy(b[140:], r.Private)
}

// CMAddress is the addressing header that a REQ's private data begins with if its service
// is an IP port.
type CMAddress struct {
	SrcPort  uint16
	Src, Dst netip.Addr // of the same family
}

// ParseCMAddress reads the header; the application's data follows it. Its errors are
// ErrTruncated, and ErrVersion for a version of the header or of IP that is not known.
func ParseCMAddress(b []byte) (a CMAddress, err error) {
	if len(b) < CMAddressLen {
		return a, ErrTruncated
	}
	if b[0] != 0 {
		return a, ErrVersion
	}
	switch b[1] >> 4 {
	case 4:
		a.Src, a.Dst = netip.AddrFrom4([4]byte(b[16:])), netip.AddrFrom4([4]byte(b[32:]))
	case 6:
		a.Src, a.Dst = netip.AddrFrom16([16]byte(b[4:])), netip.AddrFrom16([16]byte(b[20:]))
	default:
		return a, ErrVersion
	}
	a.SrcPort = binary.BigEndian.Uint16(b[2:])
	return a, nil
}

// PutCMAddress writes the header.
func PutCMAddress(b []byte, a *CMAddress) {
	b = b[:CMAddressLen]
	clear(b)
	binary.BigEndian.PutUint16(b[2:], a.SrcPort)
	if a.Src.Is4() {
		b[1] = 4 << 4
		src, dst := a.Src.As4(), a.Dst.As4()
		copy(b[16:], src[:])
		copy(b[32:], dst[:])
		return
	}
	b[1] = 6 << 4
	src, dst := a.Src.As16(), a.Dst.As16()
	copy(b[4:], src[:])
	copy(b[20:], dst[:])
}

// CMRep is the content of a REP. The fields are those of [CMReq], from the other side.
type CMRep struct {
	GUID               uint64
	QPN                uint32
	PSN                uint32
	ResponderResources uint8
	InitiatorDepth     uint8
	AckDelay           uint8 // exponent: the longest time the sender takes to acknowledge
	RNRRetry           uint8
	SRQ                bool
	Private            []byte
}

// Rep reads a REP.
func (m CM) Rep() (r CMRep) {
	b := m[madHeaderLen:]
	r.QPN, _ = split24(b[12:])
	r.PSN, _ = split24(b[20:])
	r.ResponderResources, r.InitiatorDepth = b[24], b[25]
	r.AckDelay, r.RNRRetry, r.SRQ = b[26]>>3, b[27]>>5, b[27]&0x10 != 0
	r.GUID = binary.BigEndian.Uint64(b[28:])
	r.Private = b[36:]
	return r
}

// PutCMRep writes a REP. The fields must be in their ranges.
func PutCMRep(b []byte, tid uint64, local, remote uint32, r *CMRep) {
	PutCM(b, CMRepAttr, tid, local, remote)
	b = b[madHeaderLen:MADLen]
	join24(b[12:], r.QPN, 0)
	join24(b[20:], r.PSN, 0)
	b[24], b[25] = r.ResponderResources, r.InitiatorDepth
	b[26], b[27] = r.AckDelay<<3, r.RNRRetry<<5|flag(r.SRQ, 0x10)
	binary.BigEndian.PutUint64(b[28:], r.GUID)
	copy(b[36:], r.Private)
}

// CMReason is why a connection is rejected.
type CMReason uint16

// The reasons that this module sends. A peer may send others.
const (
	CMRejTimeout          CMReason = 4 // the sender has waited long enough; the information is its GUID
	CMRejUnsupported      CMReason = 5
	CMRejInvalidCommID    CMReason = 6
	CMRejInvalidServiceID CMReason = 8 // nobody listens
	CMRejInvalidTransport CMReason = 9
	CMRejStale            CMReason = 10 // the queue pair has a connection that its owner no longer knows
	CMRejInvalidGID       CMReason = 12 // the information is the acceptable one
	CMRejInvalidPathMTU   CMReason = 26 // the information is a byte, the greatest acceptable one
	CMRejConsumer         CMReason = 28 // the application's decision
)

var cmReasons = map[CMReason]string{
	1: "no queue pair", 2: "no end-to-end context", 3: "no resources", CMRejTimeout: "timeout",
	CMRejUnsupported: "unsupported request", CMRejInvalidCommID: "invalid communication ID", 7: "invalid communication instance",
	CMRejInvalidServiceID: "invalid service ID", CMRejInvalidTransport: "invalid transport service type",
	CMRejStale: "stale connection", 11: "no reliable datagram channel", CMRejInvalidGID: "invalid GID", 13: "invalid LID",
	14: "invalid service level", 15: "invalid traffic class", 16: "invalid hop limit", 17: "invalid packet rate",
	18: "invalid alternate GID", 19: "invalid alternate LID", 20: "invalid alternate service level",
	21: "invalid alternate traffic class", 22: "invalid alternate hop limit", 23: "invalid alternate packet rate",
	24: "redirected to another port and communication manager", 25: "redirected to another port",
	CMRejInvalidPathMTU: "invalid path MTU", 27: "insufficient responder resources", CMRejConsumer: "consumer defined",
	29: "invalid RNR retry count", 30: "duplicate local communication ID", 31: "invalid class version",
	32: "invalid flow label", 33: "invalid alternate flow label",
}

func (r CMReason) String() string {
	if s, ok := cmReasons[r]; ok {
		return s
	}
	return fmt.Sprintf("reason %d", uint16(r))
}

// CMMessage is the message that a REJ or an MRA is about.
type CMMessage uint8

const (
	CMMessageReq CMMessage = iota
	CMMessageRep
	CMMessageOther // REJ: the sender has received none
)

// CMRej is the content of a REJ.
type CMRej struct {
	Rejected CMMessage
	Reason   CMReason
	Info     []byte // additional reject information
	Private  []byte
}

// Rej reads a REJ. A length of the information beyond its field is ErrLength.
func (m CM) Rej() (r CMRej, err error) {
	b := m[madHeaderLen:]
	n := int(b[9] >> 1)
	if n > CMRejInfo {
		return r, ErrLength
	}
	r.Rejected, r.Reason = CMMessage(b[8]>>6), CMReason(binary.BigEndian.Uint16(b[10:]))
	r.Info, r.Private = b[12:12+n:12+n], b[84:]
	return r, nil
}

// PutCMRej writes a REJ.
func PutCMRej(b []byte, tid uint64, local, remote uint32, r *CMRej) {
	PutCM(b, CMRejAttr, tid, local, remote)
	b = b[madHeaderLen:MADLen]
	b[8], b[9] = byte(r.Rejected)<<6, byte(len(r.Info))<<1
	binary.BigEndian.PutUint16(b[10:], uint16(r.Reason))
	copy(b[12:12+CMRejInfo], r.Info)
	copy(b[84:], r.Private)
}

// DreqQPN reads a DREQ: the number of the receiver's queue pair.
func (m CM) DreqQPN() (qpn uint32) {
	qpn, _ = split24(m[madHeaderLen+8:])
	return qpn
}

// PutCMDreq writes a DREQ.
func PutCMDreq(b []byte, tid uint64, local, remote, qpn uint32) {
	PutCM(b, CMDreqAttr, tid, local, remote)
	join24(b[madHeaderLen+8:], qpn, 0)
}

// CMMra is the content of an MRA: the answer to the message will take Timeout (an
// exponent).
type CMMra struct {
	Message CMMessage
	Timeout uint8
}

// Mra reads an MRA.
func (m CM) Mra() CMMra {
	return CMMra{CMMessage(m[madHeaderLen+8] >> 6), m[madHeaderLen+9] >> 3}
}

// PutCMMra writes an MRA.
func PutCMMra(b []byte, tid uint64, local, remote uint32, r CMMra) {
	PutCM(b, CMMraAttr, tid, local, remote)
	b[madHeaderLen+8], b[madHeaderLen+9] = byte(r.Message)<<6, r.Timeout<<3
}

// split24 reads a field of 24 bits and the octet behind it.
func split24(b []byte) (uint32, uint8) {
	w := binary.BigEndian.Uint32(b)
	return w >> 8, uint8(w)
}

func join24(b []byte, v uint32, octet uint8) { binary.BigEndian.PutUint32(b, v<<8|uint32(octet)) }

func flag(set bool, b byte) byte {
	if set {
		return b
	}
	return 0
}
