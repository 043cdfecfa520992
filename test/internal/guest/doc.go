//go:build linux

// Package guest boots virtual machines for tests: Debian's kernel under QEMU, in an initial RAM
// disk with a few modules and programs, on devices that the test chooses. KVM is not needed.
//
// Kernels, programs and QEMU itself come from Debian's packages, by apt-get download. They are
// unpacked into a folder and not installed. Packages of another release than the machine's come
// through a configuration of apt with its own lists, which has the machine's own Debian sources
// with the name of the release changed.
//
//	im, err := guest.Open(guest.Spec{Dir: dir, Packages: ..., Programs: ..., Modules: ..., Init: ...})
//	g, err := im.Boot(host, guest.Machine{Addr: ..., Devices: ..., Files: taps})
//	p, err := g.Start(agent.Command{Args: []string{"ip", "link"}})
//
// Process 1 of a guest is a program of the test that calls agent.Main. The test tells it by TCP
// what to run.
package guest
