// Package parity compares unet with package net: the tables describe what an application sees of package net, the
// tests observe it on both.
//
// It has tests only. They run on hosts in memory, which needs neither root nor AF_XDP, and on Linux also between two endpoints of one
// host that exchange frames by a memory path, which needs both.
package parity
