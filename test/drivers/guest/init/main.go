//go:build linux

// Init is process 1 of the virtual machines of package drivers. It names the network interfaces
// after GUEST_NICS of the kernel's command line, a list of names: that of number N, from 0 on, has
// the MAC address 02:00:00:00:09:N, and gets the address 10.9.N.1. Number 0 is for the test.
//
// Run again, as another process, it does so for the interfaces that have appeared since.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/test/internal/guest/agent"
)

func main() {
	if os.Getpid() == 1 {
		agent.Main(setUp)
	}
	if err := openNICs(); err != nil {
		fmt.Fprintln(os.Stderr, "init:", err)
		os.Exit(1)
	}
}

// policy permits root and nobody everything.
const policy = `
rules:
  - name: tests
    users: [0, 65534]
    tags: ["udp:*:*", "tcp:*:*", "addr:*", "msg:*"]
    endpoints: unlimited
    memory: unlimited
    trusted: true
`

func setUp(string) error {
	return errors.Join(os.MkdirAll("/etc/unet", 0o755), os.WriteFile("/etc/unet/policy.yaml", []byte(policy), 0o600), openNICs())
}

func openNICs() error {
	for n, name := range strings.Split(os.Getenv("GUEST_NICS"), ",") {
		err := agent.Await(func() error { // drivers probe asynchronously
			links, err := netlink.LinkList()
			if err != nil {
				return err
			}
			for _, l := range links {
				if bytes.Equal(l.Attrs().HardwareAddr, []byte{2, 0, 0, 0, 9, byte(n)}) && l.Type() == "device" {
					if l.Attrs().Name == name {
						return nil
					}
					return netlink.LinkSetName(l, name)
				}
			}
			return errors.New("it is missing")
		})
		if err == nil {
			err = agent.OpenLink(name, fmt.Sprintf("10.9.%d.1/24", n))
		}
		if err != nil {
			return fmt.Errorf("interface %s: %w", name, err)
		}
	}
	return nil
}
