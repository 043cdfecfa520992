package verbs

import "github.com/unet-go/unet/proto/rdma"

// Objects of a [Context]: those of package rdma, which documents them. Their methods may be called
// from any goroutine.
type (
	AH  = rdma.AH  // ibv_ah: where a UD work request goes
	MR  = rdma.MR  // ibv_mr: a memory region
	MW  = rdma.MW  // ibv_mw: a memory window
	PD  = rdma.PD  // ibv_pd: a protection domain
	SRQ = rdma.SRQ // ibv_srq: a shared receive queue
)

// The types and names of rdma-core, which package rdma documents.
type (
	Access     = rdma.Access     // ibv_access_flags
	AHAttr     = rdma.AHAttr     // ibv_ah_attr
	EventType  = rdma.EventType  // ibv_event_type
	MTU        = rdma.MTU        // ibv_mtu
	MWBind     = rdma.MWBind     // ibv_mw_bind_info
	QPAttr     = rdma.QPAttr     // ibv_qp_attr
	QPAttrMask = rdma.QPAttrMask // ibv_qp_attr_mask
	QPCap      = rdma.QPCap      // ibv_qp_cap
	QPType     = rdma.QPType     // ibv_qp_type
	RecvWR     = rdma.RecvWR     // ibv_recv_wr
	SendFlags  = rdma.SendFlags  // ibv_send_flags
	SendWR     = rdma.SendWR     // ibv_send_wr
	SGE        = rdma.SGE        // ibv_sge
	State      = rdma.State      // ibv_qp_state
	Status     = rdma.Status     // ibv_wc_status
	WC         = rdma.WC         // ibv_wc
	WCFlags    = rdma.WCFlags    // ibv_wc_flags
	WCOpcode   = rdma.WCOpcode   // ibv_wc_opcode
	WROpcode   = rdma.WROpcode   // ibv_wr_opcode
)

const (
	RC = rdma.RC
	UC = rdma.UC
	UD = rdma.UD

	StateReset = rdma.StateReset
	StateInit  = rdma.StateInit
	StateRTR   = rdma.StateRTR
	StateRTS   = rdma.StateRTS
	StateSQD   = rdma.StateSQD
	StateSQE   = rdma.StateSQE
	StateErr   = rdma.StateErr

	AccessLocalWrite   = rdma.AccessLocalWrite
	AccessRemoteWrite  = rdma.AccessRemoteWrite
	AccessRemoteRead   = rdma.AccessRemoteRead
	AccessRemoteAtomic = rdma.AccessRemoteAtomic
	AccessMWBind       = rdma.AccessMWBind

	MTU256  = rdma.MTU256
	MTU512  = rdma.MTU512
	MTU1024 = rdma.MTU1024
	MTU2048 = rdma.MTU2048
	MTU4096 = rdma.MTU4096

	MaxSGE    = rdma.MaxSGE
	MaxInline = rdma.MaxInline
)

const (
	WRRDMAWrite         = rdma.WRRDMAWrite
	WRRDMAWriteWithImm  = rdma.WRRDMAWriteWithImm
	WRSend              = rdma.WRSend
	WRSendWithImm       = rdma.WRSendWithImm
	WRRDMARead          = rdma.WRRDMARead
	WRAtomicCmpAndSwp   = rdma.WRAtomicCmpAndSwp
	WRAtomicFetchAndAdd = rdma.WRAtomicFetchAndAdd
	WRLocalInv          = rdma.WRLocalInv
	WRBindMW            = rdma.WRBindMW
	WRSendWithInv       = rdma.WRSendWithInv

	SendFence     = rdma.SendFence
	SendSignaled  = rdma.SendSignaled
	SendSolicited = rdma.SendSolicited
	SendInline    = rdma.SendInline

	WCSend            = rdma.WCSend
	WCRDMAWrite       = rdma.WCRDMAWrite
	WCRDMARead        = rdma.WCRDMARead
	WCCompSwap        = rdma.WCCompSwap
	WCFetchAdd        = rdma.WCFetchAdd
	WCBindMW          = rdma.WCBindMW
	WCLocalInv        = rdma.WCLocalInv
	WCRecv            = rdma.WCRecv
	WCRecvRDMAWithImm = rdma.WCRecvRDMAWithImm

	WCGRH     = rdma.WCGRH
	WCWithImm = rdma.WCWithImm
	WCWithInv = rdma.WCWithInv
)

const (
	StatusSuccess        = rdma.StatusSuccess
	StatusLocLenErr      = rdma.StatusLocLenErr
	StatusLocQPOpErr     = rdma.StatusLocQPOpErr
	StatusLocProtErr     = rdma.StatusLocProtErr
	StatusWRFlushErr     = rdma.StatusWRFlushErr
	StatusMWBindErr      = rdma.StatusMWBindErr
	StatusBadRespErr     = rdma.StatusBadRespErr
	StatusLocAccessErr   = rdma.StatusLocAccessErr
	StatusRemInvReqErr   = rdma.StatusRemInvReqErr
	StatusRemAccessErr   = rdma.StatusRemAccessErr
	StatusRemOpErr       = rdma.StatusRemOpErr
	StatusRetryExcErr    = rdma.StatusRetryExcErr
	StatusRNRRetryExcErr = rdma.StatusRNRRetryExcErr
	StatusRemAbortErr    = rdma.StatusRemAbortErr
	StatusFatalErr       = rdma.StatusFatalErr
	StatusGeneralErr     = rdma.StatusGeneralErr

	EventCompletion       = rdma.EventCompletion
	EventCQErr            = rdma.EventCQErr
	EventQPFatal          = rdma.EventQPFatal
	EventQPReqErr         = rdma.EventQPReqErr
	EventQPAccessErr      = rdma.EventQPAccessErr
	EventCommEst          = rdma.EventCommEst
	EventSQDrained        = rdma.EventSQDrained
	EventSRQLimitReached  = rdma.EventSRQLimitReached
	EventQPLastWQEReached = rdma.EventQPLastWQEReached
)

const (
	QPState            = rdma.QPState
	QPEnSQDAsyncNotify = rdma.QPEnSQDAsyncNotify
	QPAccessFlags      = rdma.QPAccessFlags
	QPQKey             = rdma.QPQKey
	QPAV               = rdma.QPAV
	QPPathMTU          = rdma.QPPathMTU
	QPTimeout          = rdma.QPTimeout
	QPRetryCnt         = rdma.QPRetryCnt
	QPRNRRetry         = rdma.QPRNRRetry
	QPRQPSN            = rdma.QPRQPSN
	QPMaxQPRDAtomic    = rdma.QPMaxQPRDAtomic
	QPMinRNRTimer      = rdma.QPMinRNRTimer
	QPSQPSN            = rdma.QPSQPSN
	QPMaxDestRDAtomic  = rdma.QPMaxDestRDAtomic
	QPDestQPN          = rdma.QPDestQPN
)

// IncRKey is the next key of a memory window (ibv_inc_rkey).
func IncRKey(key uint32) uint32 { return rdma.IncRKey(key) }
