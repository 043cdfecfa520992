// Package ethtool reads and sets what ethtool(8) shows of an interface: its driver, its features
// (offloads) and its channels (queues), by the ioctl SIOCETHTOOL (linux/ethtool.h). Each command is a
// byte slice in the layout of the kernel's struct, so that the pointer that the kernel gets stays a Go
// pointer until the call returns.
package ethtool
