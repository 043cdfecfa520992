package perf

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// Symbols names addresses: functions of the kernel and of loaded BPF programs by /proc/kallsyms, those of
// processes by this executable, which they run, too.
type Symbols struct {
	addrs []uint64
	names []string
}

// KernelSymbols reads /proc/kallsyms. BPF programs that are unloaded later are in it.
func KernelSymbols() (*Symbols, error) {
	b, err := os.ReadFile("/proc/kallsyms")
	if err != nil {
		return nil, err
	}
	s := parseSymbols(b)
	if len(s.addrs) == 0 {
		return nil, fmt.Errorf("%w: /proc/kallsyms shows no addresses (kernel.kptr_restrict)", ErrUnavailable)
	}
	return s, nil
}

// parseSymbols reads lines of "address type name [module]", in any order. Data and hidden addresses are left out.
func parseSymbols(b []byte) *Symbols {
	type symbol struct {
		addr uint64
		name string
	}
	var all []symbol
	for line := range bytes.Lines(b) {
		field := strings.Fields(string(line))
		if len(field) < 3 || !strings.Contains("tTwW", field[1]) || strings.HasPrefix(field[2], "__pfx_") {
			continue
		}
		if addr, err := strconv.ParseUint(field[0], 16, 64); err == nil && addr != 0 {
			all = append(all, symbol{addr, field[2]})
		}
	}
	slices.SortStableFunc(all, func(a, b symbol) int {
		if a.addr < b.addr {
			return -1
		} else if a.addr > b.addr {
			return 1
		}
		return 0
	})
	s := &Symbols{}
	for _, x := range all {
		s.addrs, s.names = append(s.addrs, x.addr), append(s.names, x.name)
	}
	return s
}

// symbol is the symbol of the kernel function that contains an address.
func (s *Symbols) symbol(addr uint64) string {
	i := sort.Search(len(s.addrs), func(i int) bool { return s.addrs[i] > addr })
	if i == 0 {
		return "unknown"
	}
	return s.names[i-1]
}

// program is the tag and the name in the symbol of a BPF program, bpf_prog_TAG_NAME, where TAG is 16 hexadecimal digits.
func program(symbol string) (tag, name string, ok bool) {
	rest, ok := strings.CutPrefix(symbol, "bpf_prog_")
	if tag, name, _ = strings.Cut(rest, "_"); !ok || len(tag) != 16 {
		return "", "", false
	}
	_, err := strconv.ParseUint(tag, 16, 64)
	return tag, name, err == nil
}

// userFunctions are the function that contains an address of a process, and, if it is inlined, the outermost one that
// it is inlined in. leaf: the process was executing that address; else it returns there.
func userFunctions(addr uint64, leaf bool) (names []string) {
	if leaf {
		addr++ // as CallersFrames expects it
	}
	f, _ := runtime.CallersFrames([]uintptr{uintptr(addr)}).Next()
	if f.Function == "" {
		return nil
	}
	names = []string{f.Function}
	if outer := runtime.FuncForPC(f.Entry).Name(); outer != f.Function {
		names = append(names, outer)
	}
	return names
}
