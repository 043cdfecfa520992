//go:build linux

package capture

import (
	"bufio"
	"encoding/binary"
)

// The pcapng file format: draft-ietf-opsawg-pcapng. gopacket's writer has neither comments nor the direction of
// packets.
const (
	blockSection   = 0x0a0d0d0a
	blockInterface = 1
	blockPacket    = 6 // enhanced

	byteOrderMagic   = 0x1a2b3c4d
	linkTypeEthernet = 1

	optEnd         = 0
	optComment     = 1
	optUserApp     = 4 // of a section
	optName        = 2 // this and the next three: of an interface
	optResolution  = 9
	optPacketFlags = 2 // of a packet

	nanoseconds = 9 // if_tsresol: 10^-9 s
)

// pcapng writes packets as pcapng. An interface is described before its first packet.
type pcapng struct {
	*bufio.Writer
	snaplen    int
	interfaces map[string]uint32
	block      []byte
}

// newPcapng writes the head of a file.
func newPcapng(w *bufio.Writer, application string, snaplen int) (*pcapng, error) {
	p := &pcapng{Writer: w, snaplen: snaplen, interfaces: map[string]uint32{}}
	p.begin(blockSection)
	p.number32(byteOrderMagic)
	p.number16(1) // version 1.0
	p.number16(0)
	p.block = binary.LittleEndian.AppendUint64(p.block, ^uint64(0)) // length of the section: not known
	p.option(optUserApp, []byte(application))
	p.option(optEnd, nil)
	return p, p.end()
}

// write writes a packet.
func (p *pcapng) write(packet *Packet) error {
	id, known := p.interfaces[packet.Device]
	if !known {
		id = uint32(len(p.interfaces))
		p.interfaces[packet.Device] = id
		if err := p.describe(packet.Device); err != nil {
			return err
		}
	}
	p.begin(blockPacket)
	p.number32(id)
	at := uint64(packet.Time.UnixNano())
	p.number32(uint32(at >> 32))
	p.number32(uint32(at))
	p.number32(uint32(len(packet.Data)))
	p.number32(uint32(packet.Length))
	p.block = append(p.block, packet.Data...)
	p.pad(len(packet.Data))
	if packet.Comment != "" {
		p.option(optComment, []byte(packet.Comment))
	}
	p.option(optPacketFlags, binary.LittleEndian.AppendUint32(nil, uint32(packet.Direction)))
	p.option(optEnd, nil)
	return p.end()
}

// describe writes the block of an interface.
func (p *pcapng) describe(name string) error {
	p.begin(blockInterface)
	p.number16(linkTypeEthernet)
	p.number16(0)
	p.number32(uint32(p.snaplen))
	p.option(optName, []byte(name))
	p.option(optResolution, []byte{nanoseconds})
	p.option(optEnd, nil)
	return p.end()
}

// begin begins a block. Its length is set by end.
func (p *pcapng) begin(kind uint32) {
	p.block = binary.LittleEndian.AppendUint32(p.block[:0], kind)
	p.number32(0)
}

// end writes the block.
func (p *pcapng) end() error {
	length := uint32(len(p.block) + 4)
	binary.LittleEndian.PutUint32(p.block[4:], length)
	p.number32(length)
	_, err := p.Write(p.block)
	return err
}

func (p *pcapng) number16(n uint16) { p.block = binary.LittleEndian.AppendUint16(p.block, n) }
func (p *pcapng) number32(n uint32) { p.block = binary.LittleEndian.AppendUint32(p.block, n) }

// pad pads what has n bytes to 32 bits.
func (p *pcapng) pad(n int) { p.block = append(p.block, make([]byte, -n&3)...) }

func (p *pcapng) option(code uint16, value []byte) {
	p.number16(code)
	p.number16(uint16(len(value)))
	p.block = append(p.block, value...)
	p.pad(len(value))
}
