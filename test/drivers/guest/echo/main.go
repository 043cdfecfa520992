//go:build linux

// Echo runs in the virtual machines of package drivers. It opens an endpoint and answers UDP
// datagrams and TCP connections with what they bring. It prints "ready" and a JSON object when it
// listens. Each line on its standard input is answered by a line that begins with that word:
//
//	stats      the counters of the endpoint (datapath.Stats), JSON
//	audit      how many frames each owner has
//	protocols  the counters of the protocols that are not 0, JSON
//
// It prints "notice" and a notice of unetd when it comes, and "ended" and the error of the first
// call that fails.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"

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
	flag.Parse()
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
	datagrams, err := h.ListenPacket(ctx, "udp", listen)
	if err != nil {
		return err
	}
	connections, err := h.Listen(ctx, "tcp", listen)
	if err != nil {
		return err
	}
	failed := make(chan error, 3)
	go func() { failed <- answerDatagrams(datagrams) }()
	go func() { failed <- answerConnections(connections) }()
	go func() { failed <- answerInput(h) }()
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

func answerInput(h *unet.Host) error {
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
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
