//go:build linux

// Package redis runs redis-benchmark and redis-cli, over kernel sockets, against
// examples/resp on unet, run by user nobody: over a good cable and one that loses
// frames, with many clients, and with clients that are idle, killed or cut off. It has tests only. They
// need root, AF_XDP and the package redis-tools, and are skipped without them unless
// UNET_REQUIRE_XDP=1 and UNET_REQUIRE_TOOLS=1.
package redis
