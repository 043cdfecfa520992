package policy

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
)

// Names finds the numbers of users and groups by their names.
type Names struct {
	User, Group func(name string) (id uint32, err error)
}

// SystemNames asks the databases of the system. An unknown name is a
// user.UnknownUserError or user.UnknownGroupError.
func SystemNames() Names {
	number := func(text string) (uint32, error) {
		n, err := strconv.ParseUint(text, 10, 32)
		return uint32(n), err
	}
	return Names{
		User: func(name string) (uint32, error) {
			u, err := user.Lookup(name)
			if err != nil {
				return 0, err
			}
			return number(u.Uid)
		},
		Group: func(name string) (uint32, error) {
			g, err := user.LookupGroup(name)
			if err != nil {
				return 0, err
			}
			return number(g.Gid)
		},
	}
}

// SubjectOf is a user of this system with all groups, by name or number. A
// number need not be in the user database; it then has no groups.
func SubjectOf(name string) (Subject, error) {
	u, err := user.Lookup(name)
	if err != nil {
		uid, numErr := strconv.ParseUint(name, 10, 32)
		if numErr != nil {
			return Subject{}, fmt.Errorf("no user %s on this system: write a name or a uid", name)
		}
		if u, err = user.LookupId(name); err != nil {
			return Subject{UID: uint32(uid), GID: noGroup}, nil
		}
	}
	uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
	gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
	ids, err := u.GroupIds()
	if uidErr != nil || gidErr != nil || err != nil {
		return Subject{}, fmt.Errorf("groups of user %s: uid %s, gid %s, %v", name, u.Uid, u.Gid, err)
	}
	s := Subject{UID: uint32(uid), GID: uint32(gid)}
	for _, text := range ids {
		id, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return Subject{}, fmt.Errorf("group %s of user %s: %w", text, name, err)
		}
		s.Groups = append(s.Groups, uint32(id))
	}
	return s, nil
}

// unprivilegedPorts is where the kernel says from which port on anybody may
// bind (ip-sysctl), in the network namespace of the process that reads it.
const unprivilegedPorts = "/proc/sys/net/ipv4/ip_unprivileged_port_start"

// FirstUnprivileged is the first port that the system does not keep for root. It
// is at least 1, which stands for no such ports.
func FirstUnprivileged() uint16 { return firstUnprivileged(os.ReadFile(unprivilegedPorts)) }

// firstUnprivileged: what cannot be read is the kernel's default.
func firstUnprivileged(text []byte, err error) uint16 {
	if err == nil {
		var n int
		if n, err = strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
			return uint16(min(max(n, 1), 1<<16-1))
		}
	}
	return 1024
}

// Floor is the first of the ports that a pattern's port * stands for.
func Floor(uid uint32) uint16 {
	if uid == 0 {
		return 1
	}
	return FirstUnprivileged()
}

// noGroup is (gid_t)-1, which no process and no file can have.
const noGroup = 1<<32 - 1
