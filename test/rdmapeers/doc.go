//go:build linux

// Package rdmapeers runs rdma-core's and perftest's programs on the Linux kernel's software
// RDMA device (rdma_rxe) against programs on unet, each program in both roles, over a good link
// and over ones that lose packets. It has tests only:
//
//	make test-rdma-peers
//	go test -v ./test/rdmapeers -guest bin/guest -run 'TestProgramsOfRDMACore/good/rping'
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
// Package test/internal/guest makes the guest of the distribution's packages, in the folder of
// -guest. Package main in guest/ is its process 1.
//
// Without -guest the tests are skipped: they download 110 MB, which `go test ./...` must
// not. The skip hides nothing, because .ci/run runs `make test-rdma-peers` besides `make test`.
package rdmapeers
