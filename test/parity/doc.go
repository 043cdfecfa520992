// Package parity compares unet with package net: the tables describe what an application sees of package net, the
// tests observe it on both.
//
// It has tests only. They run on hosts in memory, so they need neither root nor AF_XDP.
package parity
