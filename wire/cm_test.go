package wire

import (
	"bytes"
	"net/netip"
	"reflect"
	"testing"
)

// mads are the MADs of the captures by file, in order. Those of "" are all.
func mads(t testing.TB) map[string][]CM {
	all := make(map[string][]CM)
	for _, p := range captures(t) {
		var r RoCE
		if r.Parse(p.udp()) != nil || r.DstQP != GSIQPN {
			continue
		}
		m, err := ParseCM(r.Payload)
		if err != nil {
			t.Fatalf("%v: %v", p, err)
		}
		all[p.file], all[""] = append(all[p.file], m), append(all[""], m)
	}
	return all
}

// rewrite writes a MAD with the values that the accessors of m return.
func rewrite(m CM) []byte {
	b := bytes.Repeat([]byte{0xee}, MADLen)
	tid, local, remote := m.TransactionID(), m.LocalID(), m.RemoteID()
	switch m.Attr() {
	case CMReqAttr:
		r := m.Req()
		PutCMReq(b, tid, local, &r)
	case CMRepAttr:
		r := m.Rep()
		PutCMRep(b, tid, local, remote, &r)
	case CMRejAttr:
		r, err := m.Rej()
		if err != nil {
			return nil
		}
		PutCMRej(b, tid, local, remote, &r)
	case CMMraAttr:
		PutCMMra(b, tid, local, remote, m.Mra())
	case CMDreqAttr:
		PutCMDreq(b, tid, local, remote, m.DreqQPN())
	default:
		PutCM(b, m.Attr(), tid, local, remote)
	}
	return b
}

// The MADs of the captures are written again as they were, and all kinds of them occur.
func TestCMGolden(t *testing.T) {
	seen := map[CMAttr]int{}
	for _, m := range mads(t)[""] {
		seen[m.Attr()]++
		if again := rewrite(m); !bytes.Equal(again, m) {
			t.Errorf("%v\nread  %x\nwrote %x", m.Attr(), m, again)
		}
		if m.Attr() != CMReqAttr {
			continue
		}
		private := m.Req().Private
		a, err := ParseCMAddress(private)
		if err != nil {
			t.Fatal(err)
		}
		again := bytes.Clone(private)
		PutCMAddress(again, &a)
		if !bytes.Equal(again, private) {
			t.Errorf("addressing header\nread  %x\nwrote %x", private, again)
		}
	}
	for _, a := range []CMAttr{CMReqAttr, CMRejAttr, CMRepAttr, CMRtuAttr, CMDreqAttr, CMDrepAttr} {
		if seen[a] == 0 {
			t.Errorf("no %v in the captures", a)
		}
	}
}

// The fields are those that tshark prints for rping's REQ and REP.
func TestCMFields(t *testing.T) {
	mads := mads(t)["cm_rping_v4.pcap"]
	req := mads[0]
	equal(t, "transaction ID", req.TransactionID(), 0x000000020689c216)
	equal(t, "communication ID", req.LocalID(), 0x16c28906)
	r := req.Req()
	address, err := ParseCMAddress(r.Private)
	if err != nil {
		t.Fatal(err)
	}
	client, server := netip.MustParseAddr("10.9.1.2"), netip.MustParseAddr("10.9.1.1")
	equal(t, "address", address, CMAddress{0xcb14, client, server})
	r.Private = nil
	want := CMReq{
		ServiceID: ServiceTCP | 7174, GUID: 0x505400fffeaa0002, QPN: 0x1e, PSN: 0xd23d6b, ResponderResources: 1, InitiatorDepth: 1,
		RemoteTimeout: 20, LocalTimeout: 20, MaxRetries: 15, RetryCount: 7, RNRRetry: 7, PKey: DefaultPKey, PathMTU: 3, AckTimeout: 17,
		Src: netip.AddrFrom16(client.As16()), Dst: netip.AddrFrom16(server.As16()), Flow: 0x8b372000,
	}
	if !reflect.DeepEqual(r, want) {
		t.Errorf("REQ: got  %+v\nwant %+v", r, want)
	}
	p := mads[1].Rep()
	p.Private = nil
	if want := (CMRep{GUID: 0x505400fffeaa0001, QPN: 0x1a, PSN: 0x5a4f96, ResponderResources: 1, InitiatorDepth: 1, AckDelay: 15, RNRRetry: 7}); !reflect.DeepEqual(p, want) {
		t.Errorf("REP: got  %+v\nwant %+v", p, want)
	}
	equal(t, "queue pair of the DREQ", mads[3].DreqQPN(), 0x1a)
}

// The bits of fields that share an octet do not overlap.
func TestCMPackedFields(t *testing.T) {
	b := make([]byte, MADLen)
	req := CMReq{
		QPN: 1<<24 - 1, PSN: 1<<24 - 1, ResponderResources: 255, InitiatorDepth: 255, Transport: 3, RemoteTimeout: 31, LocalTimeout: 31,
		MaxRetries: 15, RetryCount: 7, RNRRetry: 7, SRQ: true, PathMTU: 15, AckTimeout: 31, Src: netip.IPv6Unspecified(), Dst: netip.IPv6Unspecified(),
	}
	PutCMReq(b, 1, 2, &req)
	got := CM(b).Req()
	got.Private = nil
	if !reflect.DeepEqual(got, req) {
		t.Errorf("REQ: got  %+v\nwant %+v", got, req)
	}
	rep := CMRep{QPN: 1<<24 - 1, PSN: 1<<24 - 1, ResponderResources: 255, InitiatorDepth: 255, AckDelay: 31, RNRRetry: 7, SRQ: true}
	PutCMRep(b, 1, 2, 3, &rep)
	gotRep := CM(b).Rep()
	gotRep.Private = nil
	if !reflect.DeepEqual(gotRep, rep) {
		t.Errorf("REP: got  %+v\nwant %+v", gotRep, rep)
	}
	PutCMMra(b, 1, 2, 3, CMMra{CMMessageOther, 31})
	equal(t, "MRA", CM(b).Mra(), CMMra{CMMessageOther, 31})
	PutCMRej(b, 1, 2, 3, &CMRej{Rejected: CMMessageOther, Reason: CMRejTimeout, Info: bytes.Repeat([]byte{1}, CMRejInfo), Private: bytes.Repeat([]byte{2}, CMRejPrivate)})
	rej, err := CM(b).Rej()
	if err != nil || rej.Rejected != CMMessageOther || rej.Reason != CMRejTimeout || len(rej.Info) != CMRejInfo || bytes.ContainsRune(rej.Info, 2) ||
		!bytes.Equal(rej.Private, bytes.Repeat([]byte{2}, CMRejPrivate)) {
		t.Errorf("REJ: %+v, %v", rej, err)
	}
}

func TestCMErrors(t *testing.T) {
	mads := mads(t)["cm_reject.pcap"]
	good := mads[1]
	for _, c := range []struct {
		name string
		edit func(b []byte) []byte
		want error
	}{
		{"short", func(b []byte) []byte { return b[:255] }, ErrTruncated},
		{"empty", func(b []byte) []byte { return nil }, ErrTruncated},
		{"long", func(b []byte) []byte { return append(b, 0) }, ErrLength},
		{"base version", func(b []byte) []byte { b[0] = 2; return b }, ErrVersion},
		{"class", func(b []byte) []byte { b[1] = 3; return b }, ErrVersion},
		{"class version", func(b []byte) []byte { b[2] = 1; return b }, ErrVersion},
		{"method", func(b []byte) []byte { b[3] = 0x81; return b }, ErrVersion},
	} {
		if _, err := ParseCM(c.edit(bytes.Clone(good))); err != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	long := bytes.Clone(good)
	long[24+9] = (CMRejInfo + 1) << 1
	if _, err := CM(long).Rej(); err != ErrLength {
		t.Errorf("information of %d bytes: %v", CMRejInfo+1, err)
	}
	header := bytes.Clone(mads[0].Req().Private)
	if _, err := ParseCMAddress(header[:35]); err != ErrTruncated {
		t.Errorf("short addressing header: %v", err)
	}
	header[1] = 0x50
	if _, err := ParseCMAddress(header); err != ErrVersion {
		t.Errorf("addressing header of IP version 5: %v", err)
	}
	header[0], header[1] = 0x10, 0x40
	if _, err := ParseCMAddress(header); err != ErrVersion {
		t.Errorf("addressing header of version 1: %v", err)
	}
}

// FuzzParseCM: a MAD that was written with the values that were read is read as the same. Bits that belong to no field
// are not written.
func FuzzParseCM(f *testing.F) {
	for _, m := range mads(f)[""] {
		f.Add([]byte(m))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ParseCM(b)
		if err != nil {
			return
		}
		if m.Attr() == CMReqAttr {
			if a, err := ParseCMAddress(m.Req().Private); err == nil {
				PutCMAddress(make([]byte, CMAddressLen), &a)
			}
		}
		once := rewrite(m)
		if once == nil {
			return
		}
		if twice := rewrite(CM(once)); !bytes.Equal(once, twice) {
			t.Errorf("%v\nfirst  %x\nsecond %x", m.Attr(), once, twice)
		}
	})
}
