package policy

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
)

// DefaultFile is read if it exists and no other was named.
const DefaultFile = "/etc/unet/policy.yaml"

// maxFile is more than any policy that people can read, bytes.
const maxFile = 1 << 20

// Load reads a policy file. The error is an [Errors] if the file could be read
// and something is wrong in it. A warning is about who else can change it.
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

// others says that somebody else than root and this process's user can write
// to a file; "": nobody can.
func others(file string, info fs.FileInfo) string {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	mode := info.Mode().Perm()
	switch {
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return fmt.Sprintf("uid %d owns %s, and so decides who may do what: chown root %s", st.Uid, file, file)
	case mode&0o002 != 0:
		return fmt.Sprintf("everybody can write to %s (mode %#o), and so decide who may do what: chmod o-w %s", file, mode, file)
	case mode&0o020 != 0 && st.Gid != 0:
		return fmt.Sprintf("group %d can write to %s (mode %#o), and so decide who may do what: chmod g-w %s", st.Gid, file, mode, file)
	}
	return ""
}

// Source is the policy in force, which may be read again.
type Source struct {
	file    string
	names   Names
	log     *slog.Logger
	reading sync.Mutex
	current atomic.Pointer[Policy]
}

// OpenSource reads the policy for the first time: file, which has to exist, or
// with file "" the fallback if that exists, and else the built-in one.
func OpenSource(file, fallback string, names Names, log *slog.Logger) (*Source, error) {
	s := &Source{file: file, names: names, log: log}
	if file == "" {
		s.file = fallback
		s.current.Store(BuiltIn())
	}
	return s, s.Reload()
}

// Policy is the policy in force.
func (s *Source) Policy() *Policy { return s.current.Load() }

// Reload reads the policy again. After an error the policy in force is what it
// was. A fallback that never was there may still be missing; a file that was
// read before may not.
func (s *Source) Reload() error {
	s.reading.Lock()
	defer s.reading.Unlock()
	now := s.current.Load()
	p, warning, err := Load(s.file, s.names)
	if now != nil && now.File == "" && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if warning != "" {
		s.log.Warn("policy file is not protected", "warning", warning)
	}
	s.current.Store(p)
	return nil
}
