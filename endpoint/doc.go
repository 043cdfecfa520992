// Package endpoint is the vocabulary that a process, unetd and the mux share:
// the request for an endpoint ([Request]), what it is made of ([Grant], [Geometry],
// [Identity]), which frames are its own ([Tag]), and what its owner can do with it
// ([Lease], [Route], [Notice], [WaitMode], errors).
//
// An endpoint is U-Net's (von Eicken et al., "U-Net: A User-Level Network
// Interface for Parallel and Distributed Computing", SOSP 1995, section 3): a
// communication segment, a send, a receive and a free queue over it, and tags.
// Package datapath sends and receives on one.
package endpoint
