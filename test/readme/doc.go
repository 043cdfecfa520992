// Package readme types what README.md tells a new user to type, and looks whether
// it does what README.md says. It has tests only; they need root, AF_XDP, iproute2
// and util-linux.
package readme
