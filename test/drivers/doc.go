//go:build linux

// Package drivers runs unet on emulated network cards, with Linux's drivers for them: virtio_net,
// igb, vmxnet3, e1000e and e1000, under an old kernel and a new one. It has tests only:
//
//	make test-vm
//	go test -v ./test/drivers -guest $PWD/bin/guest -run 'TestTraffic/new/igb'
//
// unetd and a program with an endpoint run in a virtual machine (test/internal/guest). Their peer
// is the kernel of a network namespace:
//
//	       guest                                namespace of the test
//	┌──────────────────────────┐            ┌──────────────────────┐
//	│ init, process 1     mgmt ├─ virtio_net ── tap 10.9.0.2       │
//	│ unetd, echo       virtio ├─ virtio_net ── tap 10.9.1.2, kernel's sockets
//	│              10.9.1.1    │            │                      │
//	│                      igb ├─ igb ──────── tap 10.9.2.2        │
//	│                      ... ├─ ...       │                      │
//	└──────────────────────────┘            └──────────────────────┘
//
// TestKindsOfInterfaces needs no card: bonds, VLANs and other interfaces made in software are in namespaces of the guest, and
// so is their peer.
//
// A kernel boots once and serves all tests, so a test leaves the interfaces as it found them. The
// guests panic at a kernel warning (panic_on_warn=1), and a test during which a guest reports an
// error of the kernel fails with what its console shows. The next one boots another guest.
//
// Without -guest the tests are skipped: they download 300 MB, which `go test ./...` must not. The
// skip hides nothing, because .ci/run runs `make test-vm` besides `make test`.
package drivers
