// Package memory tests memory paths between processes: endpoints of one unetd, of different users, while applications and
// unetd are killed and stopped. What arrives is compared byte by byte.
package memory
