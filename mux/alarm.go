package mux

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cilium/ebpf/ringbuf"

	"github.com/unet-go/unet/bpf"
)

// followAlarms begins to read what the programs have to say, until the mux is
// closed. An alarm names a slot, so what is left from before this process, perhaps of
// an endpoint whose slot will be another's, is not acted on: if the endpoint lives, its
// next frame raises the alarm again.
func (m *Mux) followAlarms() error {
	alarms, err := ringbuf.NewReader(m.progs.objs.Alarms)
	if err != nil {
		return fmt.Errorf("alarms: %w", err)
	}
	m.background.push(alarms.Close)
	alarms.SetDeadline(time.Unix(1, 0)) // long past: Read does not wait
	for err == nil {
		_, err = alarms.Read()
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("old alarms: %w", err)
	}
	alarms.SetDeadline(time.Time{})
	m.running.Go(func() { m.readAlarms(alarms) })
	return nil
}

func (m *Mux) readAlarms(alarms *ringbuf.Reader) {
	for {
		record, err := alarms.Read()
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			m.fail(fmt.Errorf("alarms can no longer be read, and nobody is revoked: %w", err))
			return
		}
		var a bpf.Alarm
		if err := binary.Read(bytes.NewReader(record.RawSample), binary.NativeEndian, &a); err != nil {
			m.log.Error("alarm", "error", err)
			continue
		}
		m.alarm(a)
	}
}

// alarm takes an endpoint back whose owner harms others. Its frames are dropped
// already.
func (m *Mux) alarm(a bpf.Alarm) {
	if a.Kind != bpf.AlarmFill {
		m.log.Error("alarm of an unknown kind", "kind", a.Kind, "slot", a.Slot)
		return
	}
	for _, l := range m.all() {
		if !l.at.hasSlot || l.at.slot != a.Slot {
			continue
		}
		m.revoke(l, unsoundFill)
	}
}
