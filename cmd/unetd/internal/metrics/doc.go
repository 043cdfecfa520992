//go:build linux

// Package metrics gives the figures of a running unetd to Prometheus: [Listen] opens the address of
// unetd serve --metrics, and [Serve] answers scrapes there.
//
// Each scrape reads the mux anew: the counters of the programs, the statistics of devices, and a
// short copy of what endpoints and users have, without their tags. So a scrape costs nothing
// between scrapes, and no application can make it long. Labels have few values: identifiers of
// endpoints, uids, reasons; never an address of a peer.
//
//	listen.go     the address
//	peers.go      what scrapers share
//	collector.go  what is exported, by name
package metrics
