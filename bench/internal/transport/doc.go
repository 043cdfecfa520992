// Package transport is what the benchmarks compare: ways for two processes to exchange
// messages, behind one interface. The tables of this package name them and say what they are.
//
// [All], [IPv6] and [Verbs] are the tables of transports, [Bulk] that of bandwidth, [Operations] that
// of rdma. A transport that can open connections has a Dial and a Listen function beside Open.
package transport
