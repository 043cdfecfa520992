package unet

import "github.com/unet-go/unet/proto/tcp"

// KeepAlive is what has been set; 0 stands for a default.
func (c *TCPConn) KeepAlive() tcp.KeepAlive {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.keepAlive
}

// Audit says how many frames of the segment each owner has.
func (h *Host) Audit() (a string) {
	h.stack.Do(func() { a = h.ep.Audit().String() })
	return a
}
