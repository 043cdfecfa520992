// Package rdmapeers runs rdma-core's and perftest's programs on the Linux kernel's software
// RDMA device (rdma_rxe) against programs on unet, each program in both roles, over a good link
// and over ones that lose packets. It has tests only:
//
//	make test-rdma-peers
//	go test -v ./test/rdmapeers -guest bin/guest -run 'TestPeers/good/rping'
//
// The kernel that runs the tests needs no RDMA. The peer is a virtual machine: Debian's kernel
// under QEMU, without KVM, so it can be had wherever unet's other tests run.
//
//	   host a                  middle                 host b                  guest
//	┌────────────┐        ┌──────────────┐       ┌───────────────┐       ┌─────────────┐
//	│ unetd      ├─ veth ─┤ impair.Link  ├─ veth ┤ bridge    tap ├─ QEMU ┤ rxe0        │
//	│ 10.0.0.1   │        └──────────────┘       │ 10.0.0.2      │       │ 10.0.0.3    │
//	└────────────┘                               └───────────────┘       └─────────────┘
//
// Kernel, programs and QEMU itself come from the distribution's packages, by apt-get download.
// They are unpacked into the folder of -guest and not installed. The guest boots from an
// initial RAM disk with a kernel, its modules, the programs with their libraries, and package
// main in guest/ as process 1. The test tells that process by TCP what to run.
//
// Without -guest the tests are skipped: they download 110 MB, which `go test ./...` must
// not. The skip hides nothing, because .ci/run runs `make test-rdma-peers` besides `make test`.
package rdmapeers
