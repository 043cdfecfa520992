//go:build linux

// Package steertest has a model of a driver with classification rules, for tests.
package steertest

import (
	"maps"
	"slices"

	"golang.org/x/sys/unix"
)

// Model is the classification rules of a driver. As in many drivers, an insertion at a location in use
// replaces the rule there.
type Model[Rule any] struct {
	Rules     map[uint32]Rule
	Size      uint32           // number of locations
	Chooses   bool             // the driver chooses the location of a new rule
	Accepts   func(Rule) error // asked before a rule is inserted and removed; nil: all rules
	Listed    func()           // called when the locations were listed
	Refuses   error            // of Locations
	GetErr    error            // of Get
	RemoveErr error            // of Remove
}

// anyLocation is RX_CLS_LOC_ANY.
const anyLocation = 0xffffffff

// NewModel is a driver with a number of locations and no rules.
func NewModel[Rule any](size uint32) *Model[Rule] {
	return &Model[Rule]{Rules: map[uint32]Rule{}, Size: size}
}

// Locations lists the locations in use.
func (d *Model[Rule]) Locations() ([]uint32, uint32, bool, error) {
	list := slices.Collect(maps.Keys(d.Rules))
	if d.Listed != nil {
		d.Listed()
	}
	return list, d.Size, d.Chooses, d.Refuses
}

// Get reads a rule.
func (d *Model[Rule]) Get(at uint32) (Rule, bool, error) {
	r, found := d.Rules[at]
	return r, found && d.GetErr == nil, d.GetErr
}

// Insert inserts a rule.
func (d *Model[Rule]) Insert(r Rule, at uint32) (uint32, error) {
	if d.Accepts != nil {
		if err := d.Accepts(r); err != nil {
			return 0, err
		}
	}
	if at == anyLocation && d.Chooses {
		at = d.Highest()
	}
	if at >= d.Size {
		return 0, unix.ENOSPC
	}
	d.Rules[at] = r
	return at, nil
}

// Highest is the highest free location, which ethtool(8) takes; d.Size: there is none.
func (d *Model[Rule]) Highest() uint32 {
	for at := d.Size; at > 0; at-- {
		if _, used := d.Rules[at-1]; !used {
			return at - 1
		}
	}
	return d.Size
}

// Remove removes a rule.
func (d *Model[Rule]) Remove(at uint32) error {
	if d.RemoveErr != nil {
		return d.RemoveErr
	}
	r, found := d.Rules[at]
	if !found {
		return unix.EINVAL
	}
	if d.Accepts != nil {
		if err := d.Accepts(r); err != nil {
			return err
		}
	}
	delete(d.Rules, at)
	return nil
}
