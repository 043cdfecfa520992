//go:build linux

package protocol

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/unet-go/unet/endpoint"
)

// ErrProtocol: the other end broke the rules of the protocol, or reports that this one did.
var ErrProtocol = errors.New("control protocol violation")

// codes are the codes of errors on the socket and the errors that they stand for. If several
// match an error, the first is its code.
var codes = []struct {
	code     string
	sentinel error
}{
	{"no-path", endpoint.ErrNoPath},
	{"tag-held", endpoint.ErrTagHeld},
	{"no-address", endpoint.ErrNoAddr},
	{"tag-denied", endpoint.ErrTagDenied},
	{"tag", endpoint.ErrTag},
	{"geometry", endpoint.ErrGeometry},
	{"unreachable", endpoint.ErrUnreachable},
	{"closed", endpoint.ErrLeaseClosed},
	{"not-presentable", endpoint.ErrNotPresentable},
	{"leased", endpoint.ErrLeased},
	{"huge-pages", endpoint.ErrHugePages},
	{"uplink", endpoint.ErrUplink},
	{"no-endpoint", endpoint.ErrNoEndpoint},
	{"busy", endpoint.ErrBusy},
	{"protocol", ErrProtocol},
	{"permission", os.ErrPermission},
	{"unsupported", errors.ErrUnsupported},
}

const codeInternal = "internal"

// Error is an error that crossed the socket. It unwraps to the sentinel that
// its code stands for.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"` // one line
	// An unreachable is an endpoint.ErrNoRoute, ErrProhibited or ErrBlackhole. These are no codes of their own,
	// since clients of earlier versions do not know them.
	NoRoute    bool `json:"no_route,omitempty"`
	Prohibited bool `json:"prohibited,omitempty"`
	Blackhole  bool `json:"blackhole,omitempty"`
	// Uplinks: an uplink is an endpoint.UplinksError with these.
	Uplinks []endpoint.UplinkChoice `json:"uplinks,omitempty"`
}

func (e *Error) Error() string { return e.Message }

// Unwrap returns the sentinel; nil for code internal and for unknown codes.
func (e *Error) Unwrap() error {
	for _, c := range codes {
		if c.code == e.Code {
			switch {
			case c.sentinel == endpoint.ErrUplink && len(e.Uplinks) > 0:
				return &endpoint.UplinksError{Uplinks: e.Uplinks}
			case c.sentinel != endpoint.ErrUnreachable:
			case e.NoRoute:
				return endpoint.ErrNoRoute
			case e.Prohibited:
				return endpoint.ErrProhibited
			case e.Blackhole:
				return endpoint.ErrBlackhole
			}
			return c.sentinel
		}
	}
	return nil
}

// MaxMessage is the length at which the message of an error is cut, in bytes. "..." follows
// the rest.
const MaxMessage = 1024

// Message is the text of an error as it is sent: one line.
func Message(err error) string {
	text := strings.ReplaceAll(err.Error(), "\n", "; ") // errors.Join
	if len(text) > MaxMessage {
		text = strings.ToValidUTF8(text[:MaxMessage], "") + "..."
	}
	return text
}

// NewError makes the error that is sent for err.
func NewError(err error) *Error {
	text := Message(err)
	var several *endpoint.UplinksError
	errors.As(err, &several)
	for _, c := range codes {
		if errors.Is(err, c.sentinel) {
			e := &Error{
				Code: c.code, Message: text, NoRoute: errors.Is(err, endpoint.ErrNoRoute),
				Prohibited: errors.Is(err, endpoint.ErrProhibited), Blackhole: errors.Is(err, endpoint.ErrBlackhole),
			}
			if several != nil {
				e.Uplinks = several.Uplinks
			}
			return e
		}
	}
	return &Error{Code: codeInternal, Message: text}
}

// Violation makes an ErrProtocol.
func Violation(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrProtocol}, args...)...)
}

// Busy makes an endpoint.ErrBusy.
func Busy(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{endpoint.ErrBusy}, args...)...)
}

func versionError(v int) error {
	return Violation("version %d: this end has version %d", v, Version)
}
