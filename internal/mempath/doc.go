// Package mempath exchanges Ethernet frames between two endpoints of a mux through memory
// that both map.
//
// A path has two memfds. Each end writes one of them and maps the other's read-only. [Make] makes
// the descriptors of both ends, and [Open] maps the memory of one. The first page of a memfd has
// the words of the end that writes it (type words), the rest is the ring with its frames to the
// other end:
//
//	   word frame...      word frame...            word      word frame...
//	| [ len|xxxxxxxxxx )[ len|xxxxxxx ) . . . . [ 0 ) . . . [ skip| . . . |
//	  ^ reader                                   ^ writer
//
// A frame begins at a multiple of 64 bytes with a word that has its length, and is contiguous. A
// word without a length sends the reader to the start of the ring. The writer copies the frame,
// stores 0 in the place of the next word, and then publishes the frame by one atomic store of its
// word. So the reader never takes bytes of an old frame for a word. The reader publishes how many
// bytes it has taken when these are a quarter of the ring, and when nothing is left.
//
// Neither end trusts the other, which may write any word at any moment. An end reads a
// word once and checks it, and it reads nothing of the memory that it writes itself. What the
// other end must not write is [ErrLie].
//
// An end that is about to sleep says so in a word ([Path.SetAsleep]), and then looks again
// ([Path.Pending]). The other end publishes first and reads that word then ([Path.Flush]). As all
// these accesses are sequentially consistent, at least one of the two sees what the other has written.
//
// The bells are pipes and not eventfds. All holders of an eventfd share its O_NONBLOCK flag, so the
// other end could clear it and make a write block. Of a pipe each end has its own flags.
package mempath
