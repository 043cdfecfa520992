//go:build linux

// Echo runs in the virtual machines of package drivers. It opens an endpoint, or with -kernel only sockets of
// the kernel, and answers UDP datagrams and TCP connections with what they bring. It prints "ready" and a JSON
// object when it listens. Each line on its standard input is answered by a line that begins with it:
//
//	stats         the counters of the endpoint (datapath.Stats), JSON
//	audit         how many frames each owner has
//	protocols     the counters of the protocols that are not 0, JSON
//	talk ADDR N   exchange datagrams and a stream of N bytes with the service at ADDR; the answer is "ok" or the error
//	stream ADDR N only the stream
//
// It prints "notice" and a notice of unetd when it comes, and "ended" and the error of the first
// call that fails.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
)

// Ready is what is printed when the endpoint listens.
type Ready struct {
	Mode     string // of the mux
	ZeroCopy bool
	MTU      uint32 // bytes
	endpoint.Geometry
}

func main() {
	socket := flag.String("socket", unet.DefaultSocket, "`path` of unetd's socket")
	listen := flag.String("listen", ":7", "UDP and TCP `address`")
	queue := flag.Int("queue", -1, "attach to this `queue` of the interface; -1: to a port")
	frame := flag.Uint("frame", 0, "`bytes` of a frame; 0: the default")
	ofKernel := flag.Bool("kernel", false, "use sockets of the kernel")
	flag.Parse()
	if *ofKernel {
		fmt.Println("ended", answer(new(kernel), *listen, Ready{}))
		os.Exit(1)
	}
	req := endpoint.Request{Geometry: endpoint.Geometry{FrameSize: uint32(*frame)}}
	if *queue >= 0 {
		req.Attach, req.Queue = endpoint.AttachQueue, uint32(*queue)
	}
	if err := serve(*socket, *listen, req); err != nil {
		fmt.Println("ended", err)
		os.Exit(1)
	}
}

func serve(socket, listen string, req endpoint.Request) error {
	ctx := context.Background()
	grant, lease, err := control.Open(ctx, socket, req)
	if err != nil {
		return err
	}
	options, err := unix.GetsockoptInt(int(grant.XSK.Fd()), unix.SOL_XDP, unix.XDP_OPTIONS)
	if err != nil {
		return fmt.Errorf("XDP_OPTIONS: %w", err)
	}
	ready := Ready{grant.Identity.Mode, options&unix.XDP_OPTIONS_ZEROCOPY != 0, grant.Identity.MTU, grant.Geometry}
	h, err := unet.New(ctx, grant, lease, unet.HostConfig{Wait: endpoint.WaitBlock})
	if err != nil {
		return err
	}
	notices := h.Notices(ctx)
	go func() {
		for n := range notices {
			fmt.Printf("notice %+v\n", n)
		}
	}()
	return answer(h, listen, ready)
}

// sockets are those of a [unet.Host] or of the kernel.
type sockets interface {
	ListenPacket(ctx context.Context, network, address string) (net.PacketConn, error)
	Listen(ctx context.Context, network, address string) (net.Listener, error)
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

type kernel struct {
	net.ListenConfig
	net.Dialer
}

// answer returns with the first call that fails.
func answer(from sockets, listen string, ready Ready) error {
	ctx := context.Background()
	datagrams, err := from.ListenPacket(ctx, "udp", listen)
	if err != nil {
		return err
	}
	connections, err := from.Listen(ctx, "tcp", listen)
	if err != nil {
		return err
	}
	failed := make(chan error, 3)
	go func() { failed <- answerDatagrams(datagrams) }()
	go func() { failed <- answerConnections(connections) }()
	go func() { failed <- answerInput(from) }()
	line, err := json.Marshal(ready)
	if err != nil {
		return err
	}
	fmt.Println("ready", string(line))
	return <-failed
}

func answerDatagrams(c net.PacketConn) error {
	for b := make([]byte, 1<<16); ; {
		n, from, err := c.ReadFrom(b)
		if err != nil {
			return err
		}
		if _, err := c.WriteTo(b[:n], from); err != nil { // such as ENETDOWN
			fmt.Println("not answered:", err)
		}
	}
}

func answerConnections(l net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			if _, err := io.Copy(c, c); err != nil {
				fmt.Println("connection:", err)
			}
		}()
	}
}

func answerInput(from sockets) error {
	h, _ := from.(*unet.Host)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		words := strings.Fields(in.Text())
		if len(words) == 3 {
			n, err := strconv.Atoi(words[2])
			if err == nil && words[0] == "talk" {
				err = datagrams(from, words[1])
			}
			if err == nil {
				err = stream(from, words[1], n)
			}
			if err != nil {
				fmt.Println(in.Text(), err)
				continue
			}
			fmt.Println(in.Text(), "ok")
			continue
		}
		if h == nil {
			return fmt.Errorf("%q: this program has no endpoint", in.Text())
		}
		switch in.Text() {
		case "stats":
			stats, err := h.Stats()
			if err != nil {
				return err
			}
			line, err := json.Marshal(stats)
			if err != nil {
				return err
			}
			fmt.Println("stats", string(line))
		case "protocols": // those that are not 0
			counters := map[string]uint64{}
			for _, c := range h.Counters() {
				if c.Value != 0 {
					counters[c.Name] = c.Value
				}
			}
			line, err := json.Marshal(counters)
			if err != nil {
				return err
			}
			fmt.Println("protocols", string(line))
		case "audit":
			a, ok := any(h).(interface{ Audit() string })
			if !ok {
				return errors.New("audit: this program is built without -tags unetdebug")
			}
			fmt.Println("audit", a.Audit())
		}
	}
	return nil
}

// patience is how long an exchange may take: in an emulated machine little is quick.
const patience = 60 * time.Second

// datagrams sends datagrams up to the longest that fits 1,500 bytes, and has each returned. The first may be lost
// while no route is known.
func datagrams(from sockets, to string) error {
	c, err := from.DialContext(context.Background(), "udp", to)
	if err != nil {
		return err
	}
	defer c.Close()
	got := make([]byte, 2048)
	most := 1500 - 20 - 8 // bytes in a packet of IPv4
	if strings.HasPrefix(to, "[") {
		most -= 20
	}
	for _, n := range []int{1, 64, 512, most - 1, most} {
		sent := pattern(n)
		for try := 0; ; try++ {
			if _, err := c.Write(sent); err != nil {
				return err
			}
			c.SetReadDeadline(time.Now().Add(patience / 12))
			k, err := c.Read(got)
			if err == nil && !bytes.Equal(got[:k], sent) {
				return fmt.Errorf("a datagram of %d bytes came back as %d others", n, k)
			}
			if err == nil {
				break
			}
			if n > 1 || try == 3 {
				return fmt.Errorf("a datagram of %d bytes: %w", n, err)
			}
		}
	}
	return nil
}

// stream sends n bytes on a connection, and has them returned.
func stream(from sockets, to string, n int) error {
	c, err := from.DialContext(context.Background(), "tcp", to)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	sent, got := pattern(n), make([]byte, n)
	written := make(chan error, 1)
	go func() {
		_, err := c.Write(sent)
		written <- err
	}()
	k, err := io.ReadFull(c, got)
	if err != nil {
		c.Close()
		return fmt.Errorf("%d of %d bytes came back: %w", k, n, errors.Join(err, <-written))
	}
	if !bytes.Equal(sent, got) {
		return errors.New("other bytes came back")
	}
	return <-written
}

// pattern is n random bytes.
func pattern(n int) []byte {
	b := make([]byte, n)
	var seed [32]byte
	binary.NativeEndian.PutUint64(seed[:], rand.Uint64())
	rand.NewChaCha8(seed).Read(b)
	return b
}
