//go:build linux

package nic

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// The controller is a family itself, with a number and a group that linux/genetlink.h fixes.
func TestGenlFamilies(t *testing.T) {
	f, err := findGenl("nlctrl")
	if err != nil || f.id != unix.GENL_ID_CTRL || f.groups["notify"] != unix.GENL_ID_CTRL {
		t.Errorf("nlctrl: %+v, %v", f, err)
	}
	f, err = findGenl(unix.ETHTOOL_GENL_NAME)
	if err != nil || f.id <= unix.GENL_ID_CTRL || f.groups[unix.ETHTOOL_MCGRP_MONITOR_NAME] == 0 {
		t.Errorf("ethtool: %+v, %v", f, err)
	}
	if f, err := findGenl("no-such-family"); !errors.Is(err, unix.ENOENT) {
		t.Errorf("an unknown family: %+v, %v", f, err)
	}
}
