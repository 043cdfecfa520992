package mux

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/cilium/ebpf/btf"
)

// The fields that are asked for are those that the program asks for, and those that
// a kernel lacks are found.
func TestFillFields(t *testing.T) {
	source, err := os.ReadFile("../bpf/src/fill.h")
	if err != nil {
		t.Fatal(err)
	}
	var asked []string
	for _, m := range regexp.MustCompile(`bpf_core_field_exists\(struct (\w+), (\w+)\)`).FindAllSubmatch(source, -1) {
		asked = append(asked, string(m[1])+"."+string(m[2]))
	}
	ours := slices.Sorted(slices.Values(fillFields))
	if slices.Sort(asked); !slices.Equal(asked, ours) {
		t.Errorf("the program asks for %v\nthe mux for %v", asked, ours)
	}
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		t.Fatal(err)
	}
	// The second is in a union without a name.
	if missing := missingFields(kernel, []string{"xdp_buff.rxq", "sk_buff.dev", "xdp_buff.none", "unet_none.rxq"}); !slices.Equal(missing, []string{"xdp_buff.none", "unet_none.rxq"}) {
		t.Errorf("missing %v", missing)
	}
}
