// Package testutil has what tests of many packages need: to fail on an error (Must, Value), and to wait for what must
// happen (Eventually, Until, Renew, Reader). They count progress and not seconds, since a machine that is
// overloaded needs many times as long.
package testutil
