//go:build linux

package ethtool

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// Commands of linux/ethtool.h.
const (
	getDriverInfo = 0x03 // ETHTOOL_GDRVINFO
	getStrings    = 0x1b // ETHTOOL_GSTRINGS
	getSetInfo    = 0x37 // ETHTOOL_GSSET_INFO
	getFeatures   = 0x3a // ETHTOOL_GFEATURES
	setFeatures   = 0x3b // ETHTOOL_SFEATURES
	getChannels   = 0x3c // ETHTOOL_GCHANNELS
	setChannels   = 0x3d // ETHTOOL_SCHANNELS
)

// Sizes in bytes.
const (
	stringSize     = 32  // ETH_GSTRING_LEN
	driverInfoSize = 196 // struct ethtool_drvinfo
	channelsSize   = 36  // struct ethtool_channels
)

// Socket reaches the interfaces of one network namespace.
type Socket struct{ fd int }

// Open returns a socket of the calling thread's namespace.
func Open() (*Socket, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket for ethtool: %w", err)
	}
	return &Socket{fd}, nil
}

// Close closes the socket.
func (s *Socket) Close() error { return unix.Close(s.fd) }

func newCommand(number uint32, size int) []byte {
	return binary.NativeEndian.AppendUint32(make([]byte, 0, size), number)[:size]
}

func get32(b []byte, at int) uint32    { return binary.NativeEndian.Uint32(b[at:]) }
func put32(b []byte, at int, v uint32) { binary.NativeEndian.PutUint32(b[at:], v) }

// Driver is the name of an interface's driver, such as "virtio_net".
func (s *Socket) Driver(iface string) (string, error) {
	b := newCommand(getDriverInfo, driverInfoSize)
	if err := s.Command(iface, b); err != nil {
		return "", err
	}
	return unix.ByteSliceToString(b[4 : 4+32]), nil
}

// Feature is the state of a feature (struct ethtool_get_features_block).
type Feature struct {
	Active       bool
	Changeable   bool // by the user; a driver can refuse a change nevertheless
	NeverChanged bool // the kernel does not let it be changed on any device
}

// Features are the features of an interface by name, such as "rx-gro-hw".
func (s *Socket) Features(iface string) (map[string]Feature, error) {
	names, err := s.featureNames(iface)
	if err != nil {
		return nil, err
	}
	const head, block = 8, 16 // cmd, size; available, requested, active, never_changed
	blocks := (len(names) + 31) / 32
	b := newCommand(getFeatures, head+blocks*block)
	put32(b, 4, uint32(blocks))
	if err := s.Command(iface, b); err != nil {
		return nil, err
	}
	features := make(map[string]Feature, len(names))
	for i, name := range names {
		has := func(word int) bool { return get32(b, head+i/32*block+4*word)>>(i%32)&1 != 0 }
		features[name] = Feature{Active: has(2), Changeable: has(0), NeverChanged: has(3)}
	}
	return features, nil
}

// SetFeatures turns features on and off. The driver may refuse that without an error.
func (s *Socket) SetFeatures(iface string, change map[string]bool) error {
	names, err := s.featureNames(iface)
	if err != nil {
		return err
	}
	const head, block = 8, 8 // cmd, size; valid, requested
	blocks := (len(names) + 31) / 32
	b := newCommand(setFeatures, head+blocks*block)
	put32(b, 4, uint32(blocks))
	known := 0
	for i, name := range names {
		on, is := change[name]
		if !is {
			continue
		}
		known++
		at := head + i/32*block
		put32(b, at, get32(b, at)|1<<(i%32))
		if on {
			put32(b, at+4, get32(b, at+4)|1<<(i%32))
		}
	}
	if known < len(change) {
		return fmt.Errorf("the kernel knows %d of the features %v", known, change)
	}
	return s.Command(iface, b)
}

// featureNames are the names of all features of the kernel, by their bit.
func (s *Socket) featureNames(iface string) ([]string, error) {
	const features = 4 // ETH_SS_FEATURES
	info := newCommand(getSetInfo, 20)
	binary.NativeEndian.PutUint64(info[8:], 1<<features)
	if err := s.Command(iface, info); err != nil {
		return nil, err
	}
	n := get32(info, 16)
	if n == 0 || n > 4096 {
		return nil, fmt.Errorf("the kernel names %d features", n)
	}
	const head = 12 // cmd, string_set, len
	b := newCommand(getStrings, head+int(n)*stringSize)
	put32(b, 4, features)
	put32(b, 8, n)
	if err := s.Command(iface, b); err != nil {
		return nil, err
	}
	var names []string
	for at := head; at < len(b); at += stringSize {
		names = append(names, unix.ByteSliceToString(b[at:at+stringSize]))
	}
	return names, nil
}

// Channels are numbers of queues in use: those that only receive or only send, and those that do both.
type Channels struct{ Rx, Tx, Combined uint32 }

// Channels reads the channels of an interface.
func (s *Socket) Channels(iface string) (Channels, error) {
	b, err := s.channels(iface)
	if err != nil {
		return Channels{}, err
	}
	return Channels{Rx: get32(b, 20), Tx: get32(b, 24), Combined: get32(b, 32)}, nil
}

// SetChannels sets the channels of an interface.
func (s *Socket) SetChannels(iface string, c Channels) error {
	b, err := s.channels(iface)
	if err != nil {
		return err
	}
	put32(b, 0, setChannels)
	put32(b, 20, c.Rx)
	put32(b, 24, c.Tx)
	put32(b, 32, c.Combined)
	return s.Command(iface, b)
}

// channels is struct ethtool_channels: cmd, the maximum of rx, tx, other and combined, and how many
// of each are in use.
func (s *Socket) channels(iface string) ([]byte, error) {
	b := newCommand(getChannels, channelsSize)
	return b, s.Command(iface, b)
}
