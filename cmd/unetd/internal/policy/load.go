//go:build linux

package policy

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/user"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/mux"
)

// DefaultFile is read if it exists and no other file is named.
const DefaultFile = "/etc/unet/policy.yaml"

// maxFile is the largest size of a policy file, in bytes.
const maxFile = 1 << 20

// Load reads a policy file. The error is an [Errors] if the contents are wrong. warning: users other
// than root and unetd's can write to the file.
func Load(file string, names Names) (p *Policy, warning string, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, "", fmt.Errorf("policy: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, "", fmt.Errorf("policy: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, "", fmt.Errorf("policy: %w", err)
	}
	if len(text) > maxFile {
		return nil, "", fmt.Errorf("policy: %s is too large: at most %d bytes", file, maxFile)
	}
	p, err = Parse(file, text, names)
	return p, others(file, info), err
}

// others returns a warning if users other than root and this process's can write to a file;
// "": no other user can.
func others(file string, info fs.FileInfo) string {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	mode := info.Mode().Perm()
	switch {
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return fmt.Sprintf("uid %d owns %s and can change the policy: chown root %s", st.Uid, file, file)
	case mode&0o002 != 0:
		return fmt.Sprintf("everybody can write to %s (mode %#o) and can change the policy: chmod o-w %s", file, mode, file)
	case mode&0o020 != 0 && st.Gid != 0:
		return fmt.Sprintf("group %d can write to %s (mode %#o) and can change the policy: chmod g-w %s", st.Gid, file, mode, file)
	}
	return ""
}

// Source is the policy in force and its file.
type Source struct {
	file    string
	names   Names
	log     *slog.Logger
	reading sync.Mutex
	changed []func() // +checklocks:reading
	current atomic.Pointer[Policy]
}

// OpenSource reads the policy for the first time: file, which must exist. With file "" it reads
// fallback if that exists, else it uses the built-in policy.
func OpenSource(file, fallback string, names Names, log *slog.Logger) (*Source, error) {
	s := &Source{file: file, names: names, log: log}
	if file == "" {
		s.file = fallback
		s.current.Store(BuiltIn())
	}
	_, err := s.read()
	return s, err
}

// Policy is the policy in force.
func (s *Source) Policy() *Policy { return s.current.Load() }

// OnChange calls f after each Reload that has read a policy. The next Reload waits for it.
func (s *Source) OnChange(f func()) {
	s.reading.Lock()
	defer s.reading.Unlock()
	s.changed = append(s.changed, f)
}

// Reload reads the policy again, and logs that and each mistake of the file. After an error the
// policy in force stays. A file that was read before must exist; a fallback that has never
// existed need not.
func (s *Source) Reload() (endpoint.PolicyChange, error) {
	s.reading.Lock()
	defer s.reading.Unlock()
	before := s.Policy()
	warning, err := s.read()
	if err != nil {
		for line := range strings.Lines(err.Error()) {
			s.log.Error("policy not reloaded, the old one stays", "error", strings.TrimSpace(line))
		}
		return endpoint.PolicyChange{}, err
	}
	for _, f := range s.changed {
		f()
	}
	now := s.Policy()
	c := endpoint.PolicyChange{Policy: now.String(), Rules: len(now.Rules), Changes: now.changes(before), Warning: warning}
	s.log.Info("policy reloaded", "policy", c.Policy, "rules", c.Rules, "changes", len(c.Changes))
	return c, nil
}

// read reads the policy. s.reading is held, or nobody else has s.
func (s *Source) read() (warning string, err error) {
	now := s.current.Load()
	p, warning, err := Load(s.file, s.names)
	if now != nil && now.File == "" && errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if warning != "" {
		s.log.Warn("policy file is not protected", "warning", warning)
	}
	s.current.Store(p)
	return warning, nil
}

// Names finds the numbers of users and groups by their names.
type Names struct {
	User, Group func(name string) (id uint32, err error)
}

// SystemNames uses the databases of the system. The error for an unknown name is a
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

// OwnerOf is a user of this system with all groups, by name or number. A number that is not in
// the user database has no groups.
func OwnerOf(name string) (mux.Owner, error) {
	u, err := user.Lookup(name)
	if err != nil {
		uid, numErr := strconv.ParseUint(name, 10, 32)
		if numErr != nil {
			return mux.Owner{}, fmt.Errorf("no user %s on this system: write a name or a uid", name)
		}
		if u, err = user.LookupId(name); err != nil {
			return mux.Owner{UID: uint32(uid), GID: noGroup}, nil
		}
	}
	uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
	gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
	ids, err := u.GroupIds()
	if uidErr != nil || gidErr != nil || err != nil {
		return mux.Owner{}, fmt.Errorf("groups of user %s: uid %s, gid %s, %v", name, u.Uid, u.Gid, err)
	}
	o := mux.Owner{UID: uint32(uid), GID: uint32(gid)}
	for _, text := range ids {
		id, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return mux.Owner{}, fmt.Errorf("group %s of user %s: %w", text, name, err)
		}
		o.Groups = append(o.Groups, uint32(id))
	}
	return o, nil
}

// GroupOf is the number of a group of this system, by name or number. A number need not be in the
// group database.
func GroupOf(name string) (uint32, error) {
	if id, err := SystemNames().Group(name); err == nil {
		return id, nil
	}
	id, err := strconv.ParseUint(name, 10, 32)
	if err != nil || id == noGroup {
		return 0, fmt.Errorf("no group %s on this system: write a name or a gid", name)
	}
	return uint32(id), nil
}

// unprivilegedPorts is the sysctl of the first port that needs no privilege
// (Documentation/networking/ip-sysctl.rst), in the network namespace of the reading process.
const unprivilegedPorts = "/proc/sys/net/ipv4/ip_unprivileged_port_start"

// FirstUnprivileged is the first port that the system does not reserve for root; 1: none is reserved.
func FirstUnprivileged() uint16 { return firstUnprivileged(os.ReadFile(unprivilegedPorts)) }

// firstUnprivileged is the kernel's default if the sysctl cannot be read.
func firstUnprivileged(text []byte, err error) uint16 {
	if err == nil {
		var n int
		if n, err = strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
			return uint16(min(max(n, 1), 1<<16-1))
		}
	}
	return 1024
}

// Floor is the first port that a pattern's port * stands for, for a user.
func Floor(uid uint32) uint16 {
	if uid == 0 {
		return 1
	}
	return FirstUnprivileged()
}

// noGroup is (gid_t)-1, which is no valid group.
const noGroup = 1<<32 - 1
