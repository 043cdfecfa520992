//go:build linux

package mux

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/tagtable"
	"github.com/unet-go/unet/mux/internal/attach"
)

// ErrTagTable: the tag table cannot be made in [Config].Dir.
var ErrTagTable = errors.New("tag table")

// The tag table (package tagtable) shows applications which endpoint holds a tag that is in effect, for memory paths between endpoints. So
// everything that changes the holder of a tag in the kernel's table first hides it here, and then shows its holder.

// openTable makes the mux's tag table, or empties the one that an earlier process has left: adopt fills it. A pinned mux without a directory has none.
func (m *Mux) openTable(cfg Config) (err error) {
	if cfg.Pin == "" {
		cfg.Dir = "" // it ends with the process
	} else if cfg.Dir == "" {
		return nil
	}
	if cfg.Dir != "" {
		if err := CleanTagTables(cfg.Dir, cfg.Pin, func(what string) { m.log.Info("cleanup", "what", what) }); err != nil {
			return err
		}
	}
	if m.table, err = tagtable.Create(cfg.Dir, tableName(m.up.Netns, m.up.Index)); err != nil {
		return fmt.Errorf("%w: %w", ErrTagTable, err)
	}
	m.handles.push(m.table.Close)
	return nil
}

// tableName is the name of a tag table's file. It has the cookie of the network namespace and the ifindex, like the directory of the pins.
func tableName(netns uint64, ifindex int) string { return fmt.Sprintf("tags-%d-%d", netns, ifindex) }

// CleanTagTables removes the tag tables in a directory whose muxes are neither served by a process nor pinned in the bpffs. report is called with a line about
// each.
func CleanTagTables(dir, bpffs string, report func(what string)) error {
	pinned, err := attach.Pinned(bpffs)
	if err != nil {
		return err
	}
	keep := map[string]bool{}
	for _, p := range pinned {
		keep[tableName(p.Netns, p.Index)] = true
	}
	files, err := filepath.Glob(filepath.Join(dir, "tags-*-*"))
	for _, f := range files {
		if !keep[filepath.Base(f)] && tagtable.Discard(f) {
			report(f + ": removed, its mux is gone")
		}
	}
	return err
}

// hide removes the holder of a tag from the tag table before its entry in the kernel's table changes. So the tag table never shows a
// holder that the kernel's table does not have. m.mu is held.
//
// +checklocks:m.mu
func (m *Mux) hide(t endpoint.Tag) {
	if m.table != nil {
		m.table.Clear(t)
	}
}

// show shows in the tag table that l holds a tag and that it is in effect. If there is no room, other endpoints reach the tag through their ports. m.mu is held.
//
// +checklocks:m.mu
func (m *Mux) show(t endpoint.Tag, l *Lease) {
	if m.table == nil {
		return
	}
	if err := m.table.Set(t, l.id); err != nil && !m.unshown {
		m.unshown = true
		m.log.Warn("a tag is not in the tag table: it has no memory paths; this is logged once", "interface", m.up.Name, "tag", t, "error", err)
	}
}
