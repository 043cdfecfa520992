package mux

import (
	"fmt"
	"strings"

	"github.com/cilium/ebpf/btf"
)

// fillFields are the kernel's fields by which unet_deliver looks at a fill ring
// (pool_is_shown in bpf/src/fill.h): none of them is promised to be there.
var fillFields = []string{
	"net_device._rx", "netdev_rx_queue.pool",
	"xsk_buff_pool.fq", "xsk_buff_pool.addrs_cnt", "xsk_buff_pool.frame_len",
	"xsk_queue.ring_mask", "xsk_queue.nentries", "xsk_queue.cached_prod", "xsk_queue.cached_cons",
	"xsk_queue.ring", "xsk_queue.invalid_descs",
	"xdp_ring.producer", "xdp_umem_ring.desc", "xdp_desc.addr", "xdp_rxq_info.dev", "xdp_buff.rxq",
}

// checkFillFields finds out whether the programs can look at fill rings on this
// kernel. Where they cannot, an owner who is not trusted gets no port, unless
// permitted.
func (m *Mux) checkFillFields(permitted bool) error {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return fmt.Errorf("types of the kernel: %w", err)
	}
	missing := missingFields(kernel, fillFields)
	if len(missing) == 0 {
		return nil
	}
	m.trustedOnly = !permitted
	consequence := "only trusted users get endpoints"
	if permitted {
		consequence = "an endpoint's owner can take the processor time of those who send to it, 50 ms at a time"
	}
	m.log.Warn("the mux cannot check fill rings on this kernel: "+consequence, "missing", missing)
	return nil
}

// missingFields are those of fields, struct.member, that types do not have.
func missingFields(types *btf.Spec, fields []string) (missing []string) {
	for _, f := range fields {
		name, member, _ := strings.Cut(f, ".")
		var s *btf.Struct
		if types.TypeByName(name, &s) != nil || !hasMember(s.Members, member) {
			missing = append(missing, f)
		}
	}
	return missing
}

// hasMember looks into members without a name too.
func hasMember(members []btf.Member, name string) bool {
	for _, m := range members {
		if m.Name == name {
			return true
		}
		if m.Name != "" {
			continue
		}
		switch inner := btf.UnderlyingType(m.Type).(type) {
		case *btf.Struct:
			if hasMember(inner.Members, name) {
				return true
			}
		case *btf.Union:
			if hasMember(inner.Members, name) {
				return true
			}
		}
	}
	return false
}
