// Package packaging installs unetd as users do: by make install, and as a Debian package on a
// system with systemd.
//
// The system is this machine's own, seen through an overlay file system, in namespaces: with its
// dpkg, and with systemd as process 1. What happens there changes nothing on the machine. The
// Debian package is installed, configured, upgraded while an application exchanges datagrams,
// removed and purged there, and unetd runs as its unit says.
package packaging
