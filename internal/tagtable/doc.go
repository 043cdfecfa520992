//go:build linux

// Package tagtable is a file in shared memory that says which endpoint of a mux holds which tag. The mux writes it ([Table]),
// and every application maps it read-only ([View]). So two applications that exchange frames through a memory path learn of a
// tag that moves at once, without a message and without a system call:
//
//   - a sender finds the endpoint that holds a destination;
//   - a reader checks that the source of a frame is a tag of the endpoint at the other end.
//
// Beside the tags the file has an epoch for each endpoint. The mux changes it when the endpoint ends ([Table.Bump]), and with it end
// all paths of the endpoint.
//
// # File
//
// The file is an array of 64-bit words in native byte order, each read and written by one atomic access:
//
//	header   magic, version, generation
//	epochs   of endpoint id: word id % 65536
//	slots    a hash table of addresses with linear probing: holder, address, area
//	areas    the ports of one address each: a word for each UDP port, then one for each TCP port
//
// The holder of a slot is an endpoint that holds the whole address, or host for an address whose ports are held one by one, or 0: then
// the slot is free. A port's word is the endpoint that holds it, or 0.
//
// A message tag is a whole address: [MessageAddr], which no host has. Messages may use half of the slots.
//
// A slot gets another address only while it is free, and the generation is increased before it is in use again. A reader that finds the
// same generation before and after a look-up has read words that belong together.
//
// All pages are allocated before they are within the file's size. So neither a write of the mux nor a read of an application can fail for want of memory
// (SIGBUS), and no application can make the file larger by reading it. An address with ports takes 1 MiB. There can be 64 of them,
// and about 6000 addresses and message tags in all.
package tagtable
