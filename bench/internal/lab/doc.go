// Package lab makes the pairs of hosts that are measured on, and starts the processes.
//
//	            host a                      host b
//	muxed   unetd, client (cpu 0)  ─────  unetd, server (cpu 1)
//	crowd   unetd, client (cpu 0)  ─────  unetd, server (cpu 1), and 255 endpoints on either host
//	plain          client (cpu 0)  ─────         server (cpu 1)
//	direct         client (cpu 0)  ─────         server (cpu 1), which attach XDP programs themselves
//
// The muxed pair carries the mux's XDP programs, attached by one unetd a host, which idles
// during a measurement. The plain pair, for the kernel's baselines, carries no XDP program;
// otherwise it is the same. bandwidth has pairs with the MTU that it asks for.
//
// What is measured on one host has both its processes on host a of the muxed pair: two endpoints
// of one unetd, or kernel sockets over lo and unix sockets.
//
// Processes are of uid nobody, without capabilities, and pinned to a processor each unless GOMAXPROCS is asked for.
// Those of the direct pair are root's.
//
// A measurement is a server and its client ([Lab.Run]), two new processes. The server says by a line that it listens.
// The client starts then, writes a line with what it has measured, and ends. SIGTERM ends the server. unetbench
// starts itself, as the hidden command child, for messages ([Lab.Measure]); services are programs of their own.
package lab
