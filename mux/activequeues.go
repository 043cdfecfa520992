//go:build linux

package mux

import (
	"fmt"

	"github.com/unet-go/unet/internal/route"
)

// A device can have more queues than it uses. In native mode virtio_net adds queues for redirected
// frames, one for each processor: these receive, and a socket on one sends nothing
// (xsk_generic_xmit in net/xdp/xsk.c compares with real_num_tx_queues, virtnet_poll_tx in
// drivers/net/virtio_net.c leaves is_xdp_raw_buffer_queue).

// usableQueues is the number of queues of the uplink that receive and send now.
func (m *Mux) usableQueues() (n uint32, err error) {
	err = route.Within(m.ns, func() error {
		l, err := m.nl.LinkByIndex(m.up.ifindex)
		if err != nil {
			return err
		}
		n, err = activeQueues(l.Attrs().Name, m.up.queues)
		n = min(n, sendingQueues(m.up.ifindex, m.up.queues))
		return err
	})
	return n, err
}

// checkQueue returns ErrNoQueue if a queue of the uplink does not receive and send now. As long as a
// socket is bound to a queue, the kernel does not let ethtool turn it off (ethtool_set_channels).
func (m *Mux) checkQueue(queue uint32) error {
	n, err := m.usableQueues()
	if err == nil && queue >= n {
		err = fmt.Errorf("%w: %d of the %d queues of %s receive and send now, and queue %d is none of them: see ethtool -L %s (virtio_net takes it only before unetd is started, and has queues for XDP that cannot send)",
			ErrNoQueue, n, m.up.queues, m.up.name, queue, m.up.name)
	}
	return err
}
