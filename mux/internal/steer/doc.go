//go:build linux

// Package steer leads the frames of tags to queues of a device by classification rules of its driver
// (ethtool -N). It knows which rules a tag needs (rules.go), which are in the driver, and which of these it has
// inserted (steer.go). A tag whose frames cannot be led is [Refused], with the reason.
//
// Nothing about rules is stored. A process that takes over a mux takes a rule that leads a tag to its endpoint's
// queue for one that the former process has inserted, adopts it with the tag, or drops it.
//
// Package mux is above it, and package nic below.
package steer
