//go:build linux

package guest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// archive writes a cpio archive of the kind that the kernel takes as initial RAM disk
// (Documentation/driver-api/early-userspace/buffer-format.rst). Its first error stays.
type archive struct {
	w   io.Writer
	has map[string]bool
	err error
}

// writeArchive makes a file with what fill adds to the archive.
func writeArchive(path string, fill func(a *archive) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	a := &archive{w: f, has: map[string]bool{}}
	err = fill(a)
	a.entry("TRAILER!!!", 0, nil)
	return errors.Join(err, a.err, f.Close())
}

func (a *archive) entry(path string, mode int, data []byte) {
	if a.err != nil || a.has[path] {
		return
	}
	if dir := filepath.Dir(path); dir != "." {
		a.dir(dir)
	}
	a.has[path] = true
	head := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		len(a.has), mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(path)+1, 0, path)
	head += strings.Repeat("\x00", -len(head)&3)
	_, err1 := io.WriteString(a.w, head)
	_, err2 := a.w.Write(append(slices.Clip(data), make([]byte, -len(data)&3)...))
	a.err = errors.Join(err1, err2)
}

func (a *archive) dir(path string)                         { a.entry(path, 0o40755, nil) }
func (a *archive) link(path, to string)                    { a.entry(path, 0o120777, []byte(to)) }
func (a *archive) file(path string, mode int, data []byte) { a.entry(path, 0o100000|mode, data) }

func (a *archive) copy(file, path string) {
	data, err := os.ReadFile(file)
	if err != nil && a.err == nil {
		a.err = err
	}
	a.file(path, 0o755, data)
}
