//go:build linux

// Package http tests unet's TCP with independent clients and servers: curl and wrk against net/http on unet, and a net/http client on unet
// against nginx. It has tests only. They need root, AF_XDP and these tools, and
// are skipped without them unless UNET_REQUIRE_XDP=1 and UNET_REQUIRE_TOOLS=1.
package http
