//go:build linux

package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/protocol"
)

// If the server's backlog is full (EAGAIN), as when many applications start at once, the
// connection is tried again, dialTries times.
const (
	dialPause = 10 * time.Millisecond
	dialTries = 200
)

// dial connects to unetd. Its errors name the cause and what the user can do.
func dial(ctx context.Context, socket string) (*net.UnixConn, error) {
	for try := 1; ; try++ {
		conn, err := dialOnce(ctx, socket)
		if err == nil {
			return conn, nil
		}
		if !errors.Is(err, unix.EAGAIN) {
			return nil, explainDial(socket, err)
		}
		if try == dialTries {
			return nil, protocol.Busy("unetd at %s does not accept connections", socket)
		}
		select {
		case <-time.After(dialPause):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func dialOnce(ctx context.Context, socket string) (*net.UnixConn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unixpacket", socket)
	if err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}

func explainDial(socket string, err error) error {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return err
	}
	info, statErr := os.Stat(socket)
	switch {
	case errno == unix.ENOENT, errno == unix.ENOTDIR:
		return fmt.Errorf("unetd is not running at %s: %w", socket, errno)
	case statErr == nil && info.Mode()&fs.ModeSocket == 0:
		return fmt.Errorf("%s is not a socket: %w", socket, errno)
	case errno == unix.ECONNREFUSED && removed(socket):
		return fmt.Errorf("the unetd that made the socket at %s has ended, and the mount of a socket never leads to that of another: mount its folder instead: %w", socket, errno)
	case errno == unix.ECONNREFUSED:
		return fmt.Errorf("unetd is not running at %s, but left its socket there: %w", socket, errno)
	case errno == unix.EPROTOTYPE:
		return fmt.Errorf("%s is not the socket of unetd, but of something else: %w", socket, errno)
	case errno == unix.EACCES && statErr == nil:
		return fmt.Errorf("%s may not be used by uid %d (it has %s): ask for membership, or for unetd serve --socket-group: %w",
			socket, os.Geteuid(), ownership(info), errno)
	}
	return fmt.Errorf("%s: %w", socket, errno)
}

// ownership is a file's permissions, as in "mode 0660, owner root, group unet".
func ownership(info fs.FileInfo) string {
	text := fmt.Sprintf("mode %#o", info.Mode().Perm())
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		owner, group := strconv.Itoa(int(st.Uid)), strconv.Itoa(int(st.Gid))
		if u, err := user.LookupId(owner); err == nil {
			owner = u.Username
		}
		if g, err := user.LookupGroupId(group); err == nil {
			group = g.Name
		}
		text += fmt.Sprintf(", owner %s, group %s", owner, group)
	}
	return text
}
