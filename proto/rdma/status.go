package rdma

import "fmt"

// Status is how a work request ended (ibv_wc_status).
type Status uint8

const (
	StatusSuccess Status = iota
	StatusLocLenErr
	StatusLocQPOpErr
	StatusLocEECOpErr
	StatusLocProtErr
	StatusWRFlushErr
	StatusMWBindErr
	StatusBadRespErr
	StatusLocAccessErr
	StatusRemInvReqErr
	StatusRemAccessErr
	StatusRemOpErr
	StatusRetryExcErr
	StatusRNRRetryExcErr
	StatusLocRDDViolErr
	StatusRemInvRDReqErr
	StatusRemAbortErr
	StatusInvEECNErr
	StatusInvEECStateErr
	StatusFatalErr
	StatusRespTimeoutErr
	StatusGeneralErr
)

var statusNames = [...]string{
	"success", "local length error", "local QP operation error", "local EE context operation error",
	"local protection error", "Work Request Flushed Error", "memory management operation error",
	"bad response error", "local access error", "remote invalid request error", "remote access error",
	"remote operation error", "transport retry counter exceeded", "RNR retry counter exceeded",
	"local RDD violation error", "remote invalid RD request", "aborted error", "invalid EE context number",
	"invalid EE context state", "fatal error", "response timeout error", "general error",
}

// String is what ibv_wc_status_str says.
func (s Status) String() string { return name(statusNames[:], int(s)) }

func name(names []string, i int) string {
	if i < len(names) {
		return names[i]
	}
	return fmt.Sprint("unknown (", i, ")")
}

// QPType is the transport service of a queue pair.
type QPType uint8

const (
	RC  QPType = iota // reliable connection
	UC                // unreliable connection
	UD                // unreliable datagram
	GSI               // the UD queue pair with number 1, for management datagrams; its Q_Key is [wire.GSIQKey]
)

var typeNames = [...]string{"RC", "UC", "UD", "GSI"}

func (t QPType) String() string { return name(typeNames[:], int(t)) }

// State is the state of a queue pair (ibv_qp_state).
type State uint8

const (
	StateReset State = iota
	StateInit
	StateRTR // ready to receive
	StateRTS // ready to send
	StateSQD // send queue draining or drained
	StateSQE // send queue error; UC and UD
	StateErr
)

var stateNames = [...]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}

func (s State) String() string { return name(stateNames[:], int(s)) }

// Access says what may be done with memory, or to a queue pair (ibv_access_flags). Reading
// locally is always allowed.
type Access uint16

const (
	AccessLocalWrite Access = 1 << iota
	AccessRemoteWrite
	AccessRemoteRead
	AccessRemoteAtomic
	AccessMWBind // windows may be bound to the region

	accessRemote = AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic
)

// MTU is a path MTU: bytes of payload in each packet but the last of a message (ibv_mtu).
type MTU uint8

const (
	MTU256 MTU = 1 + iota
	MTU512
	MTU1024
	MTU2048
	MTU4096
)

// Bytes is the MTU in bytes.
func (m MTU) Bytes() int { return 128 << m }

// WROpcode is the operation of a work request for a send queue (ibv_wr_opcode).
type WROpcode uint8

const (
	WRRDMAWrite WROpcode = iota
	WRRDMAWriteWithImm
	WRSend
	WRSendWithImm
	WRRDMARead
	WRAtomicCmpAndSwp
	WRAtomicFetchAndAdd
	WRLocalInv
	WRBindMW
	WRSendWithInv
)

var wrNames = [...]string{"RDMA_WRITE", "RDMA_WRITE_WITH_IMM", "SEND", "SEND_WITH_IMM", "RDMA_READ",
	"ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD", "LOCAL_INV", "BIND_MW", "SEND_WITH_INV"}

func (o WROpcode) String() string { return name(wrNames[:], int(o)) }

// WCOpcode is the operation that has completed (ibv_wc_opcode). It is meaningful with
// StatusSuccess only.
type WCOpcode uint8

const (
	WCSend WCOpcode = iota
	WCRDMAWrite
	WCRDMARead
	WCCompSwap
	WCFetchAdd
	WCBindMW
	WCLocalInv
	WCRecv            WCOpcode = 128 + iota - 7
	WCRecvRDMAWithImm          // a WRITE with immediate data consumed the receive
)

var wcNames = [...]string{"SEND", "RDMA_WRITE", "RDMA_READ", "COMP_SWAP", "FETCH_ADD", "BIND_MW", "LOCAL_INV"}

func (o WCOpcode) String() string {
	switch o {
	case WCRecv:
		return "RECV"
	case WCRecvRDMAWithImm:
		return "RECV_RDMA_WITH_IMM"
	}
	return name(wcNames[:], int(o))
}

// SendFlags are the flags of a [SendWR] (ibv_send_flags).
type SendFlags uint8

const (
	SendFence     SendFlags = 1 << iota // begin after all earlier READs and atomics have completed
	SendSignaled                        // complete with a WC
	SendSolicited                       // set the solicited event bit; for SENDs and WRITEs with immediate
	SendInline                          // the data is SendWR.Inline, copied by PostSend
)

// WCFlags are the flags of a [WC] (ibv_wc_flags).
type WCFlags uint8

const (
	WCGRH     WCFlags = 1 << iota // UD: the first 40 bytes of the buffer hold the network header
	WCWithImm                     // ImmData is valid
	WCWithInv                     // InvalidatedRKey is valid
)

// EventType is the type of an [Event] (ibv_event_type), or a completion.
type EventType uint8

const (
	EventCompletion  EventType = iota // a CQ armed by ReqNotify has a completion
	EventCQErr                        // a CQ has overrun; its queue pairs are in ERR
	EventQPFatal                      // an error of the queue pair with no work request to report it
	EventQPReqErr                     // the responder refused an invalid request
	EventQPAccessErr                  // the responder refused a remote access
	EventCommEst                      // the first packet has arrived in RTR
	EventSQDrained                    // the send queue has drained in SQD
	EventSRQLimitReached
	EventQPLastWQEReached // a queue pair with an SRQ in ERR will take no more receives
)

var eventNames = [...]string{"completion", "CQ error", "local work queue catastrophic error",
	"invalid request local work queue error", "local access violation work queue error",
	"communication established", "send queue drained", "SRQ limit reached", "last WQE reached"}

// String is what ibv_event_type_str says.
func (t EventType) String() string { return name(eventNames[:], int(t)) }
