//go:build linux

package bpf

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"

	"github.com/unet-go/unet/endpoint"
)

// The objects were compiled from the committed sources. This needs no clang: SOURCES.sha256 has the
// hashes of both.
func TestObjectsAreCurrent(t *testing.T) {
	list, err := os.ReadFile("SOURCES.sha256")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for s := bufio.NewScanner(bytes.NewReader(list)); s.Scan(); {
		sum, name, ok := strings.Cut(s.Text(), "  ")
		if !ok {
			t.Fatalf("SOURCES.sha256: %q", s.Text())
		}
		want[name] = sum
	}
	got := map[string]string{}
	for _, pattern := range []string{"generate.go", "src/*", "*_bpfel.*"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			sum := sha256.Sum256(b)
			got[name] = hex.EncodeToString(sum[:])
		}
	}
	if !maps.Equal(got, want) {
		for _, name := range slices.Sorted(maps.Keys(got)) {
			if got[name] != want[name] {
				t.Errorf("%s changed since the objects were compiled", name)
			}
		}
		t.Fatal("run go generate ./bpf, and commit what it writes")
	}
}

// The names in Go are those of the enum in the compiled object.
func TestCounterNames(t *testing.T) {
	spec, err := LoadMux()
	if err != nil {
		t.Fatal(err)
	}
	var enum *btf.Enum
	if err := spec.Types.TypeByName("unet_counter", &enum); err != nil {
		t.Fatal(err)
	}
	if len(enum.Values) != NumCounters+1 {
		t.Fatalf("enum unet_counter has %d values, want %d and UNET_COUNTERS", len(enum.Values), NumCounters)
	}
	for _, v := range enum.Values[:NumCounters] {
		if got, want := CounterName(Counter(v.Value)), counterOf(v.Name); got != want {
			t.Errorf("%s is called %q, want %q", v.Name, got, want)
		}
		if CounterHelp(Counter(v.Value)) == "" {
			t.Errorf("%s: nothing icmp what it counts", v.Name)
		}
	}
	if last := enum.Values[NumCounters]; last.Name != "UNET_COUNTERS" || last.Value != uint64(NumCounters) {
		t.Errorf("the last value is %s = %d", last.Name, last.Value)
	}
}

// A counter is one of frames that were delivered, of frames that were left to the kernel, or of frames that were dropped.
func TestDroppedCounters(t *testing.T) {
	for c := range Counter(NumCounters) {
		name := CounterName(c)
		kept := strings.HasPrefix(name, "rx_pass") || slices.Contains([]string{"rx_port", "rx_queue", "rx_host", "rx_group", "rx_cut", "tx_uplink", "tx_local", "tx_host", "tx_group", "deliver_socket", "mux_uplink", "mux_local", "mux_host"}, name)
		if Dropped(c) == kept {
			t.Errorf("%s: dropped is %v", name, Dropped(c))
		}
	}
}

// The sizes in Go are those of the maps in the compiled object, and that of a block is endpoint's.
func TestSizes(t *testing.T) {
	spec, err := LoadMux()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{"counters": NumCounters, "port_sockets": MaxPorts, "endpoints": MaxPorts, "devices": MaxPorts + 2, "tag_counts": TagCounts} {
		if n := spec.Maps[name].MaxEntries; n != uint32(want) {
			t.Errorf("map %s has %d entries, want %d", name, n, want)
		}
	}
	if BlockPorts != endpoint.BlockPorts {
		t.Errorf("a block has %d ports, and %d in package endpoint", BlockPorts, endpoint.BlockPorts)
	}
}

// counterOf is the name that a C enumerator of enum unet_counter has in Go.
func counterOf(enumerator string) string {
	return strings.ToLower(strings.TrimPrefix(enumerator, "UNET_"))
}
