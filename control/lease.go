//go:build linux

package control

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/notices"
	"github.com/unet-go/unet/internal/protocol"
)

// DefaultSocket is the default path of unetd's socket.
const DefaultSocket = "/run/unet/unetd.sock"

// ErrProtocol: unetd broke the rules of the protocol, or reports that this process did.
var ErrProtocol = protocol.ErrProtocol

// Lease is a process's right to an endpoint that unetd has granted. It implements
// [endpoint.Lease]. The end of a request's context does not end the lease. When the lease
// has ended, every request returns an error that wraps [endpoint.ErrLeaseClosed].
//
// A lease and its endpoint outlive the unetd that granted them. When the connection ends
// without a reason, the lease tries to connect to the same socket until a unetd runs again,
// and presents the endpoint's XSK, of which it keeps a descriptor. Meanwhile requests wait,
// at most until their context ends; each takes effect once. The lease ends when it is
// closed, when unetd ends it, or when the next unetd does not have the endpoint. While no
// unetd runs, the endpoint sends and receives as before.
type Lease struct {
	queue  bool       // attached to a queue of the uplink
	shares bool       // it has asked for memory paths
	socket string     // to connect to again
	files  []*os.File // to present: the XSK, and the table of connections if there is one; closed with the lease

	ctx    context.Context // ends when the lease is being closed, or has ended
	cancel context.CancelFunc

	// Held during a claim or an unclaim. So a claim whose caller's context has ended is
	// undone before the same tag is claimed again, and at most one tag can have changed when
	// an answer was lost.
	changing chan struct{}

	mu sync.Mutex
	// +checklocks:mu
	conn *connection // it may have ended; then keep makes another
	// +checklocks:mu
	moved chan struct{} // closed, and replaced, when conn is replaced
	// +checklocks:mu
	held map[endpoint.Tag]bool // tags of the endpoint, from unetd's answers; see change

	watchers *notices.Watchers
	paths    notices.Paths

	done  chan struct{} // closed when the lease has ended
	cause error         // why it has; nil: it was closed; set before done is closed

	closing sync.Once
}

var _ endpoint.Lease = (*Lease)(nil)

// Pauses before a resolve, or the release of a tag, is repeated that failed with ErrBusy:
// other resolves are in progress at unetd, for seconds at most, or it is stopped.
const (
	shortestBusy = 50 * time.Millisecond
	longestBusy  = 250 * time.Millisecond
)

// Open connects to the unetd that listens at socket, and opens an endpoint.
// The context bounds the opening only. The grant's descriptors are the
// caller's to close, or to hand to [datapath.Attach]; the lease lives until
// [Lease.Close], the end of this process, or until unetd takes it back. UNET_MEMORY=off in the
// environment sets NoMemoryPaths of the request.
func Open(ctx context.Context, socket string, req endpoint.Request) (*endpoint.Grant, *Lease, error) {
	req.NoMemoryPaths = req.NoMemoryPaths || os.Getenv("UNET_MEMORY") == "off"
	conn, err := dial(ctx, socket)
	if err != nil {
		return nil, nil, err
	}
	grant, lease, err := open(ctx, conn, socket, req)
	if err != nil {
		return nil, nil, fmt.Errorf("unetd at %s: %w", socket, err)
	}
	return grant, lease, nil
}

// open asks for an endpoint on a new connection, which it takes over.
func open(ctx context.Context, conn *net.UnixConn, socket string, req endpoint.Request) (*endpoint.Grant, *Lease, error) {
	l := &Lease{
		socket:   lasting(socket),
		queue:    req.Attach == endpoint.AttachQueue,
		shares:   !req.NoMemoryPaths,
		changing: make(chan struct{}, 1),
		moved:    make(chan struct{}),
		held:     make(map[endpoint.Tag]bool),
		done:     make(chan struct{}),
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.watchers = notices.New(l.done)
	l.conn = newConnection(conn, l.watchers, &l.paths)
	grant, err := l.conn.open(ctx, req)
	if err == nil {
		if err = l.keepToPresent(grant.XSK, req.Connections); err != nil {
			grant.Close()
		}
	}
	if err != nil {
		closeFiles(l.files)
		l.cancel()
		l.conn.end()
		return nil, nil, err
	}
	for _, t := range grant.Tags {
		l.held[t] = true
	}
	go l.keep(l.conn)
	return grant, l, nil
}

// open asks for an endpoint. A grant that comes just after ctx has ended is
// closed.
func (c *connection) open(ctx context.Context, req endpoint.Request) (*endpoint.Grant, error) {
	o := protocol.Operation{Op: protocol.OpOpen, Open: req, MemoryPaths: !req.NoMemoryPaths}
	if req.Connections != nil {
		o.Files = []*os.File{req.Connections}
	}
	request, err := c.send(ctx, o)
	if err == nil {
		var a protocol.Answer
		if a, err = c.wait(ctx, request); err == nil {
			return a.Grant, nil
		}
	}
	c.end()
	if request != nil && isClosed(request.answered) && request.answer.Grant != nil {
		request.answer.Grant.Close()
	}
	if errors.Is(err, errGone) {
		err = c.cause
	}
	return nil, err
}

// lasting makes a path absolute, so that it stays valid after a change of the working
// directory. It returns socket itself if the result does not fit a socket's address.
func lasting(socket string) string {
	const abstract = "@"
	if len(socket) == 0 || socket[:1] == abstract {
		return socket
	}
	var address unix.RawSockaddrUnix
	if abs, err := filepath.Abs(socket); err == nil && len(abs) < len(address.Path) {
		return abs
	}
	return socket
}

// keepToPresent duplicates the descriptor of each file that is not nil, for present.
func (l *Lease) keepToPresent(files ...*os.File) error {
	for _, f := range files {
		if f == nil {
			continue
		}
		own, err := duplicate(f)
		if err != nil {
			return err
		}
		l.files = append(l.files, own)
	}
	return nil
}

func closeFiles(files []*os.File) (err error) {
	for _, f := range files {
		err = errors.Join(err, f.Close())
	}
	return err
}

// duplicate makes another descriptor of a file, close-on-exec.
func duplicate(f *os.File) (*os.File, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd int
	ctlErr := raw.Control(func(of uintptr) { fd, err = unix.FcntlInt(of, unix.F_DUPFD_CLOEXEC, 0) })
	if err = errors.Join(ctlErr, err); err != nil {
		return nil, fmt.Errorf("cannot duplicate the descriptor of %s: %w", f.Name(), err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// Claim adds a tag; see [endpoint.Lease]. If ctx ends first, a claim that
// succeeds nevertheless is released.
func (l *Lease) Claim(ctx context.Context, t endpoint.Tag) (endpoint.Tag, error) {
	return l.changeTags(ctx, protocol.Operation{Op: protocol.OpClaim, Tag: t})
}

// Unclaim releases a tag; see [endpoint.Lease]. It may take effect also when
// ctx ends first.
func (l *Lease) Unclaim(ctx context.Context, t endpoint.Tag) error {
	_, err := l.changeTags(ctx, protocol.Operation{Op: protocol.OpUnclaim, Tag: t})
	return err
}

// Resolve asks unetd for a route; see [endpoint.Lease]. If unetd is busy, it asks again.
func (l *Lease) Resolve(ctx context.Context, src, dst netip.Addr) (endpoint.Route, error) {
	if err := endpoint.CheckDestination(dst); err != nil {
		return endpoint.Route{}, err
	}
	if err := endpoint.CheckSource(src, dst); err != nil {
		return endpoint.Route{}, err
	}
	pause := shortestBusy
	for {
		a, err := l.repeat(ctx, protocol.Operation{Op: protocol.OpResolve, Addr: dst, Source: src})
		if err == nil {
			return *a.Route, nil
		}
		if !errors.Is(err, endpoint.ErrBusy) || errors.Is(err, endpoint.ErrLeaseClosed) {
			return endpoint.Route{}, err
		}
		select {
		case <-time.After(pause):
		case <-l.done:
		case <-ctx.Done():
			return endpoint.Route{}, fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
		pause = min(2*pause, longestBusy)
	}
}

// repeat makes a request that has the same effect if it is made twice. If the connection ends
// before the answer, it makes the request on the next one.
func (l *Lease) repeat(ctx context.Context, o protocol.Operation) (protocol.Answer, error) {
	for {
		c, err := l.connection(ctx)
		if err != nil {
			return protocol.Answer{}, err
		}
		a, err := c.ask(ctx, o)
		switch {
		case errors.Is(err, errGone):
		case errors.Is(err, endpoint.ErrLeaseClosed): // the connection ends next, perhaps the lease: as in change
			select {
			case <-c.done:
			case <-ctx.Done():
			}
		default:
			return a, err
		}
	}
}

// Notices returns what changes around the endpoint; see [endpoint.Lease]. When the connection
// is lost, there is a NoticeUnetdGone. When the lease has connected to another unetd, there are a
// NoticeUnetdBack and a NoticeRoute for all destinations: changes until then were not reported,
// and the new unetd reports only on destinations that it has resolved itself. It then reports
// which addresses have come and gone meanwhile.
func (l *Lease) Notices(ctx context.Context) iter.Seq[[]endpoint.Notice] {
	return l.watchers.Notices(ctx)
}

// Done is closed when the lease has ended: by Close, by unetd, or because no unetd has the
// endpoint any more.
func (l *Lease) Done() <-chan struct{} { return l.done }

// Err is nil before Done is closed; see [endpoint.Lease]. It wraps the reason if
// it was not Close.
func (l *Lease) Err() error {
	if !isClosed(l.done) {
		return nil
	}
	if l.cause == nil {
		return endpoint.ErrLeaseClosed
	}
	return fmt.Errorf("%w: %w", endpoint.ErrLeaseClosed, l.cause)
}

// Close gives everything back. It waits until unetd has reclaimed it, for 2 seconds at most,
// so the tags can be claimed again when it returns; a unetd that is stopped or overloaded
// reclaims it when it continues. Without a connection Close returns at once. Then
// the next unetd reclaims the endpoint after its grace period, or the kernel does when the
// last descriptor of the XSK is closed. The error is nil.
func (l *Lease) Close() error {
	l.closing.Do(func() {
		l.cancel() // before conn is read: move sets conn after it has checked ctx
		l.mu.Lock()
		c := l.conn
		l.mu.Unlock()
		c.finish()
	})
	<-l.done
	return nil
}
