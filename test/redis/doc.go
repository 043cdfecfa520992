// Package redis runs redis-benchmark and redis-cli, on a kernel, against examples/resp
// on unet, which user nobody runs: over a cable that is good and one that loses
// frames, with clients that are many, idle, killed or cut off. It has tests only. They
// need root, AF_XDP and the package redis-tools, and are skipped without unless
// UNET_REQUIRE_XDP=1 and UNET_REQUIRE_TOOLS=1.
package redis
