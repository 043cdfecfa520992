//go:build linux

package kv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
	"github.com/unet-go/unet/verbs"
)

// openRDMA makes the RDMA device of the host whose interface is given, in the namespace of the
// calling thread or in that of at.
func openRDMA(ctx context.Context, at *netlab.Host, ifname string) (c *verbs.Context, closeAll func(), err error) {
	cfg := mux.Config{Interface: ifname}
	if at != nil {
		cfg.NetNS = at.NS
	}
	m, err := mux.Open(cfg)
	if err != nil {
		return nil, nil, err
	}
	grant, lease, err := m.OpenEndpoint(ctx, endpoint.Request{})
	if err != nil {
		return nil, nil, errors.Join(err, m.Close())
	}
	h, err := unet.New(ctx, grant, lease, unet.HostConfig{})
	if err != nil {
		return nil, nil, errors.Join(err, grant.Close(), lease.Close(), m.Close())
	}
	if c, err = verbs.Open(ctx, h, verbs.Config{}); err != nil {
		return nil, nil, errors.Join(err, h.Close(), m.Close())
	}
	return c, func() { c.Close(); h.Close(); m.Close() }, nil
}

// testServer is a server and the host of its clients, on the two ends of a cable.
type testServer struct {
	*netlab.Pair
	server *Server
	rdma   *verbs.Context // of the clients
}

func newTestServer(t *testing.T, cfg Config) *testServer {
	t.Helper()
	w := &testServer{Pair: netlab.RequirePair(t, netlab.Config{})}
	c, closeServer, err := openRDMA(t.Context(), w.A, w.A.Interface)
	testutil.Must(t, err)
	t.Cleanup(closeServer)
	cfg.Port = 7600
	w.server, err = NewServer(c, cfg)
	testutil.Must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- w.server.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; !errors.Is(err, context.Canceled) {
			t.Errorf("Serve: %v", err)
		}
		if n := w.server.Clients(); n != 0 {
			t.Errorf("%d clients at the end", n)
		}
	})
	rdma, closeClient, err := openRDMA(t.Context(), w.B, w.B.Interface)
	testutil.Must(t, err)
	t.Cleanup(closeClient)
	w.rdma = rdma
	return w
}

func (w *testServer) dial(t *testing.T) *Client {
	t.Helper()
	k, err := Dial(t.Context(), w.rdma, w.server.Addr())
	testutil.Must(t, err)
	t.Cleanup(func() { testutil.Must(t, k.Close()) })
	return k
}

func expect(t *testing.T, get func(string, []byte) ([]byte, error), key, want string) {
	t.Helper()
	if v, err := get(key, nil); err != nil || string(v) != want {
		t.Errorf("%s is %q, %v; want %q", key, v, err, want)
	}
}

func TestStore(t *testing.T) {
	w := newTestServer(t, Config{Slots: 12, SlotSize: 64})
	a, b := w.dial(t), w.dial(t)
	if _, err := a.Get("x", nil); err != ErrNotFound {
		t.Errorf("an empty table: %v", err)
	}
	testutil.Must(t, a.Put("x", []byte("1")))
	testutil.Must(t, a.Put("y", nil))
	testutil.Must(t, a.Put("x", []byte("two")))
	for _, get := range []func(string, []byte) ([]byte, error){a.Get, b.Get, w.server.Get} {
		expect(t, get, "x", "two")
		expect(t, get, "y", "")
	}
	testutil.Must(t, b.Delete("x"))
	if err := b.Delete("x"); err != ErrNotFound {
		t.Errorf("deleted twice: %v", err)
	}
	if _, err := a.Get("x", nil); err != ErrNotFound {
		t.Errorf("a deleted key: %v", err)
	}
	testutil.Must(t, b.Put("x", bytes.Repeat([]byte("z"), 31)))
	expect(t, a.Get, "x", strings.Repeat("z", 31))
	if err := b.Put("x", make([]byte, 32)); err != ErrTooLong {
		t.Errorf("a value that is too long: %v", err)
	}

	// A full table keeps its keys and returns ErrFull. A deleted key makes room.
	put := map[string]string{"x": strings.Repeat("z", 31), "y": ""}
	var full error
	for i := 0; full == nil; i++ {
		key := fmt.Sprint("key ", i)
		if full = a.Put(key, []byte(key)); full == nil {
			put[key] = key
		}
	}
	if full != ErrFull || len(put) < Probes || len(put) > 12 {
		t.Errorf("after %d keys: %v", len(put), full)
	}
	for key, value := range put {
		expect(t, b.Get, key, value)
	}
	for key := range put {
		testutil.Must(t, a.Delete(key))
		testutil.Must(t, a.Put(key+"'", nil))
		testutil.Must(t, a.Delete(key+"'"))
	}
}

// A slot that is half written is read again until it is whole.
func TestTornReadIsRepeated(t *testing.T) {
	w := newTestServer(t, Config{})
	k := w.dial(t)
	testutil.Must(t, k.Put("x", []byte("old")))
	table := &w.server.table
	slot, found := table.find("x")
	if !found {
		t.Fatal("no slot")
	}
	table.compose(slot, "x", []byte("new"), 3)
	half := table.slotSize / 2
	table.write(slot, table.slotSize-8, half)
	got := make(chan error)
	go func() {
		v, err := k.Get("x", nil)
		if err == nil && string(v) != "new" {
			err = fmt.Errorf("got %q", v)
		}
		got <- err
	}()
	for k.Torn() < 3 {
		select {
		case err := <-got:
			t.Fatalf("a slot that is half written has been taken: %v", err)
		default:
			runtime.Gosched()
		}
	}
	table.write(slot, half-8, 0)
	testutil.Must(t, <-got)
}

// parse refuses every copy in which some words are of another version. The checksum finds those
// between equal version words.
func TestParseRefusesMixedVersions(t *testing.T) {
	w := newTestServer(t, Config{SlotSize: 128})
	table := &w.server.table
	images := [2][]byte{}
	for i := range images {
		value := bytes.Repeat([]byte{byte('a' + i)}, 128-overhead-3)
		table.compose(0, "key", value, uint64(len(value)))
		images[i] = bytes.Clone(table.next)
		table.write(0, 120, 0)
		if k, v, s := parse(images[i]); s != present || string(k) != "key" || !bytes.Equal(v, value) {
			t.Fatalf("%q %q %v", k, v, s)
		}
	}
	for at := 0; at < 128; at += 8 {
		for end := at + 8; end <= 128; end += 8 {
			mixed := bytes.Clone(images[1])
			copy(mixed[at:end], images[0][at:])
			if bytes.Equal(mixed, images[0]) || bytes.Equal(mixed, images[1]) {
				continue
			}
			if _, _, s := parse(mixed); s != torn {
				t.Errorf("bytes [%d, %d) of another version: state %d", at, end, s)
			}
		}
	}
	bad := bytes.Clone(images[0])
	bad[14] = 0xff // a length beyond the slot
	if _, _, s := parse(bad); s != torn {
		t.Errorf("an impossible length: state %d", s)
	}
}

// Readers read entries of several packets while a writer changes them: every value that they get
// was written as a whole, and READs were torn and repeated.
func TestReadsDuringWrites(t *testing.T) {
	const size = 16 << 10
	w := newTestServer(t, Config{Slots: 16, SlotSize: size})
	writer := w.dial(t)
	value := func(i int) []byte { return bytes.Repeat([]byte{byte(i)}, size/2+i%100*60) }
	testutil.Must(t, writer.Put("x", value(0)))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 1; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if err := writer.Put("x", value(i)); err != nil {
				t.Errorf("put: %v", err)
				return
			}
		}
	})
	var readers [2]*Client
	for i := range readers {
		readers[i] = w.dial(t)
	}
	deadline := time.Now().Add(2 * time.Minute) // so that the test ends; it takes a second
	for n := 0; readers[0].Torn() < 5 || readers[1].Torn() < 5 || n < 100; n++ {
		if time.Now().After(deadline) {
			t.Errorf("%d lookups without 5 torn READs of each reader", 2*n)
			break
		}
		for _, r := range readers {
			v, err := r.Get("x", nil)
			if err != nil || len(v) < size/2 || !bytes.Equal(v, bytes.Repeat(v[:1], len(v))) {
				t.Fatalf("a torn value of %d bytes, %v", len(v), err)
			}
		}
	}
	close(stop)
	wg.Wait()
}

// childVariable makes the test's program a client on the interface that it names.
const childVariable = "UNET_RKV_CLIENT"

func TestMain(m *testing.M) {
	if ifname := os.Getenv(childVariable); ifname != "" {
		if err := childClient(ifname); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// childClient changes and looks up a key until it is killed.
func childClient(ifname string) error {
	ctx := context.Background()
	c, _, err := openRDMA(ctx, nil, ifname)
	if err != nil {
		return err
	}
	k, err := Dial(ctx, c, netip.MustParseAddrPort(os.Args[len(os.Args)-1]))
	if err != nil {
		return err
	}
	for i := 0; ; i++ {
		if err := k.Put("child", fmt.Append(nil, i)); err != nil {
			return err
		}
		if v, err := k.Get("child", nil); err != nil || string(v) != fmt.Sprint(i) {
			return fmt.Errorf("got %q, %v; want %d", v, err, i)
		}
		if i == 100 {
			fmt.Println("ready")
		}
	}
}

// The server drops a client that is killed in the middle of its work. The values that the client
// has put are complete, and the next client is served.
func TestClientIsKilled(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	c, closeServer, err := openRDMA(t.Context(), pair.A, pair.A.Interface)
	testutil.Must(t, err)
	defer closeServer()
	server, err := NewServer(c, Config{Port: 7600, KeepAlive: 10 * time.Millisecond, MaxClients: 1})
	testutil.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error)
	go func() { served <- server.Serve(ctx) }()
	defer func() {
		cancel()
		<-served
	}()

	child := exec.Command(os.Args[0], "-test.run=^$", server.Addr().String())
	child.Env = append(os.Environ(), childVariable+"="+pair.B.Interface)
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	testutil.Must(t, err)
	testutil.Must(t, pair.B.Start(child))
	defer child.Wait()
	defer child.Process.Kill()
	if _, err := io.ReadFull(out, make([]byte, len("ready"))); err != nil {
		t.Fatalf("the client has ended: %v", err)
	}
	if n := server.Clients(); n != 1 {
		t.Errorf("%d clients", n)
	}
	testutil.Must(t, child.Process.Kill())
	child.Wait()
	if v, err := server.Get("child", nil); err != nil || len(v) == 0 {
		t.Errorf("after the client's end: %q, %v", v, err)
	}

	rdma, closeClient, err := openRDMA(t.Context(), pair.B, pair.B.Interface)
	testutil.Must(t, err)
	defer closeClient()
	var rejected *verbs.RejectError
	var k *Client
	for k == nil { // until the server has noticed the end, it has no room for another client
		if k, err = Dial(t.Context(), rdma, server.Addr()); err != nil && !errors.As(err, &rejected) {
			t.Fatal(err)
		}
	}
	defer k.Close()
	testutil.Must(t, k.Put("x", []byte("y")))
	expect(t, k.Get, "x", "y")
	if n := server.Clients(); n != 1 {
		t.Errorf("%d clients", n)
	}
}

// A client that violates the protocol gets an answer or is dropped. Other clients are not affected.
func TestHostileClient(t *testing.T) {
	w := newTestServer(t, Config{Slots: 16, SlotSize: 64})
	good := w.dial(t)
	testutil.Must(t, good.Put("x", []byte("y")))
	for name, request := range map[string][]byte{
		"nothing":                   {},
		"half a header":             {putRequest, 0},
		"a key beyond the message":  {putRequest, 1, 0, 'x'},
		"another kind":              {2, 0, 1, 'x'},
		"a key longer than a slot":  append([]byte{putRequest, 0, 60}, make([]byte, 60)...),
		"a delete of an unused key": {deleteRequest, 0, 1, 'q'},
	} {
		k := w.dial(t)
		copy(k.mr.Bytes(), request)
		if _, err := k.qp.PostRecv(verbs.RecvWR{SGList: []verbs.SGE{k.mr.SGE(128, 1)}}); err != nil {
			t.Fatal(err)
		}
		send := verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{k.mr.SGE(0, len(request))}}
		if err := k.run(time.Now().Add(timeout), 2, []verbs.SendWR{send}); err != nil || k.mr.Bytes()[128] == byte(statusOK) {
			t.Errorf("%s: status %d, %v", name, k.mr.Bytes()[128], err)
		}
	}
	// A request that is too long for the server's receive, and a WRITE to the table, end the connection.
	for name, wr := range map[string]verbs.SendWR{
		"a long request":       {Opcode: verbs.WRSend},
		"a WRITE to the table": {Opcode: verbs.WRRDMAWrite, RemoteAddr: good.info.addr, RKey: good.info.rkey},
	} {
		k := w.dial(t)
		wr.Flags, wr.SGList = verbs.SendSignaled, []verbs.SGE{k.mr.SGE(0, 100)}
		if err := k.run(time.Now().Add(timeout), 1, []verbs.SendWR{wr}); err == nil || k.wcs[0].Status != verbs.StatusRemInvReqErr {
			t.Errorf("%s: %v", name, err)
		}
	}
	expect(t, good.Get, "x", "y")
	testutil.Must(t, good.Put("x", []byte("z")))
	expect(t, good.Get, "x", "z")
}
