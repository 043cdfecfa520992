package mux

import "fmt"

// Mode is how the programs are attached. A mux and all of its ports are
// attached in the same mode.
type Mode uint8

const (
	// ModeAuto is native where the interface is hardware whose driver can
	// receive, redirect and be redirected to, and generic elsewhere. On a veth
	// generic is faster: native copies each skb into an XDP frame first.
	ModeAuto Mode = iota
	// ModeGeneric runs the programs on skbs, on any driver.
	ModeGeneric
	// ModeNative runs them in the driver. On a veth the other end then needs
	// GRO or an XDP program of its own, else what is sent there is lost.
	ModeNative
)

func (m Mode) String() string {
	switch m {
	case ModeGeneric:
		return "generic"
	case ModeNative:
		return "native"
	}
	return "auto"
}

// ParseMode is the inverse of [Mode.String].
func ParseMode(s string) (Mode, error) {
	for m := ModeAuto; m <= ModeNative; m++ {
		if s == m.String() {
			return m, nil
		}
	}
	return 0, fmt.Errorf("mode %q: want auto, generic or native", s)
}
