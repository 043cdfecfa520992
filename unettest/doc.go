// Package unettest runs hosts of package unet in one process, without privilege, on any
// operating system. The hosts have the real protocol engines. Their network is a switch in
// memory, which can delay, lose, duplicate and reorder frames, limit the rate, and be
// partitioned while a test runs.
//
//	func TestService(t *testing.T) {
//		a, b := unettest.Pair(t)
//		l, err := a.Listen(t.Context(), "tcp", ":80")
//		...
//		go http.Serve(l, handler)
//		client := http.Client{Transport: &http.Transport{DialContext: b.DialContext}}
//		resp, err := client.Get("http://a/")
//
// Hosts find each other by name: [unet.Host.Resolver], and so DialContext, knows the names
// of the hosts. The addresses are 10.0.0.1, 10.0.0.2 and so on. Each host owns its address as
// a whole, so every port of it is free.
//
// It works in real time, and in the virtual time of testing/synctest if the network is made
// and closed in the bubble. There a second of retransmissions takes no time.
//
// The hosts know each other's MAC addresses without ARP, so a dial to a host behind a partition
// times out. A dial to an address without a host is EHOSTUNREACH.
//
// With Options.IPv6 the hosts have the IPv6 addresses fd00::1, fd00::2 and so on too. Then, as in
// package net, a listener at ":80" serves both families and its Addr is [::]:80, which cannot be
// dialled.
package unettest
