// Package demo tests the example demo: that it shows what it announces, and leaves nothing. It has tests only. They
// need root and AF_XDP, and are skipped without unless UNET_REQUIRE_XDP=1.
package demo
