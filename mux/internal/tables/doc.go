//go:build linux

// Package tables reads and writes the maps that the programs of a mux share with it: tags and their counts
// (tags.go), groups (groups.go), endpoints and sockets (tables.go), limits (limits.go) and the addresses of the
// host (own.go). It translates between the types of packages endpoint and bpf, keeps entries that belong together
// consistent, and knows neither devices nor leases. It has no lock: a caller that changes a table holds the lock of
// its mux.
//
// Package mux is above it, and package bpf below.
package tables
