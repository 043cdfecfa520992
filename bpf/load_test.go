//go:build linux

package bpf

import (
	"bytes"
	"crypto/sha256"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
)

// All programs pass the verifier, in each configuration of the mux.
func TestLoad(t *testing.T) {
	netlab.RequireXDP(t)
	for _, c := range []struct{ generic, notesVLAN bool }{{true, true}, {true, false}, {false, false}} {
		spec, err := LoadMux()
		testutil.Must(t, err)
		testutil.Must(t, spec.Variables["config"].Set(Config([6]byte{2, 0, 0, 0, 0, 1}, 1, 0, testMTU, c.generic, c.notesVLAN)))
		var objs MuxObjects
		testutil.Must(t, spec.LoadAndAssign(&objs, nil))
		testutil.Must(t, objs.Close())
	}
}

// The programs load on a kernel without the types and fields of fill rings.
func TestLoadWithoutSocketTypes(t *testing.T) {
	netlab.RequireXDP(t)
	raw, err := os.ReadFile("/sys/kernel/btf/vmlinux")
	if err != nil {
		t.Skip(err)
	}
	for _, name := range []string{"xsk_buff_pool", "xdp_umem_ring", "xdp_desc", "_rx", "invalid_descs"} {
		other := bytes.ReplaceAll(raw, []byte("\x00"+name+"\x00"), []byte("\x00"+string(bytes.Repeat([]byte("x"), len(name)))+"\x00"))
		if bytes.Equal(other, raw) {
			t.Logf("this kernel has no name %s", name)
			continue
		}
		kernel, err := btf.LoadSpecFromReader(bytes.NewReader(other))
		testutil.Must(t, err)
		spec, err := LoadMux()
		testutil.Must(t, err)
		var objs MuxObjects
		if err := spec.LoadAndAssign(&objs, &ebpf.CollectionOptions{Programs: ebpf.ProgramOptions{KernelTypes: kernel}}); err != nil {
			t.Errorf("without %s: %v", name, err)
			continue
		}
		testutil.Must(t, objs.Close())
	}
}

// ObjectsHash is the SHA-256 hash of the object.
func TestObjectsHash(t *testing.T) {
	object, err := os.ReadFile("mux_bpfel.o")
	testutil.Must(t, err)
	if got := ObjectsHash(); got != sha256.Sum256(object) {
		t.Errorf("hash %x is not that of the object", got)
	}
}
