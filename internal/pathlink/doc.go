// Package pathlink joins the memory paths of an endpoint with its socket: it is one [stack.Link] over both, for a stack or for
// the messages of package datapath.
//
// A frame to another endpoint of the same mux is copied into the path to it, if there is one, and every other frame
// goes to the socket. Which endpoint that is says the mux's tag table (internal/tagtable), by the frame's destination: its
// address, protocol and port. Only whole packets of TCP and UDP, and U-Net messages, go by a path; fragments, ICMP, ARP and what
// goes to several hosts use the port.
//
// The first frame to an endpoint without a path asks for one. Frames go by the port until it is there:
//
//	none ── first frame ──▶ asked ── granted ──▶ in use ── idle, or ended ──▶ none
//	  ▲                       │                     │
//	  └──── refused: a pause ─┘                     └── the frames in it are lost, as on a wire
//
// What comes by a path was written by another process, which may be hostile and may still be writing. So a frame is
// copied to memory of this process before anything is read of it but its length, and then it must have
// a source that is the writer's by the tag table, a destination that is this endpoint's, and this host's MAC addresses. After that it
// is a frame like any other: the stack checks its headers, and all checksums but that of TCP.
//
// TCP writes long segments into the ring itself ([Link.ReservePath]): they may be longer than the socket's frames. Such a frame is
// received into a buffer of the link, which the next one overwrites.
//
// Paths without frames cost little. After a few milliseconds without one a path is parked: of all paths, parked or not, every eighth
// look or Borrow looks at one in turn, and at as many more as it has got frames. So the first frame in a parked path waits for eight times as
// many looks or frames as there are paths, and hostile writers can add nothing to that.
// A Sleep has the writers of parked paths ring for their next frame, and leaves it at that when it has ended. So the next one has only
// the active paths to prepare. Before it waits it looks at all paths once.
//
// A reader that does not read costs its writers a few milliseconds in which they wait for it; then they
// drop what is for it, until it reads again. Connections of TCP wait longer, since they hold up nobody else.
package pathlink
