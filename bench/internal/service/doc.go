// Package service has the services that unetbench services measures: each is a server and a
// client of ordinary Go libraries, over the sockets of any [unet.Network]. Only the listener
// and the dialer differ between unet and the kernel.
//
// A request carries 64 bytes and its answer the same number, or 1 MiB, which the client checks.
// A connection of package load is a connection of the transport here: clients do not share one,
// as libraries with streams (HTTP/2, gRPC, QUIC) otherwise would.
package service
