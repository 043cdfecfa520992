//go:build linux

// Package death tests what the peers of an application see when it ends without closing
// its connections: it is killed, panics or exits. Applications are processes of user nobody,
// peers are sockets of a kernel, or another application on the same host.
package death
