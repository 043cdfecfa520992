//go:build linux

package attach

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/unet-go/unet/bpf"
)

// RefuseProgram is the name of the socket filter that drops and counts. All sockets share it; a classic filter would take
// a page of memory for each socket.
const RefuseProgram = "unet_refuse"

// loadRefuse loads the socket filter, which returns the number of bytes that the socket may have: 0.
func loadRefuse(counters *ebpf.Map) (*ebpf.Program, error) {
	refuse, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name:    RefuseProgram,
		Type:    ebpf.SocketFilter,
		License: "Apache-2.0",
		Instructions: asm.Instructions{
			asm.StoreImm(asm.RFP, -4, int64(bpf.LostReserved), asm.Word),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.LoadMapPtr(asm.R1, counters.FD()),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "drop"),
			asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord),
			asm.Add.Imm(asm.R1, 1),
			asm.StoreMem(asm.R0, 0, asm.R1, asm.DWord),
			asm.Mov.Imm(asm.R0, 0).WithSymbol("drop"),
			asm.Return(),
		},
	})
	if err != nil {
		return nil, fmt.Errorf("socket filter: %w", err)
	}
	return refuse, nil
}
