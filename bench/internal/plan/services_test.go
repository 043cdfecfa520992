package plan

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
)

// TestServiceCellsAreUnique: the cells are all combinations in the order of the tables. The default GOMAXPROCS
// that is also named is measured once.
func TestServiceCellsAreUnique(t *testing.T) {
	s := DefaultServices()
	s.Services, s.Connections = []string{QUIC, TCP, QUIC}, []int{3, 1}
	s.Procs = []string{DefaultProcs, fmt.Sprint(runtime.GOMAXPROCS(0)), "99"}
	cells, err := s.Cells()
	p := runtime.GOMAXPROCS(0)
	want := []ServiceCell{{TCP, 3, p}, {TCP, 1, p}, {QUIC, 3, p}, {QUIC, 1, p}, {TCP, 3, 99}, {TCP, 1, 99}, {QUIC, 3, 99}, {QUIC, 1, 99}}
	if err != nil || !slices.Equal(cells, want) {
		t.Errorf("%v, %v; want %v", cells, err, want)
	}
}

func TestDefaultServicesAreMeasured(t *testing.T) {
	cells, err := DefaultServices().Cells()
	if n := (len(ServiceList) - 2) * 3 * 2; err != nil || len(cells) < n {
		t.Errorf("%d cells, %v; want at least %d", len(cells), err, n)
	}
	for _, c := range cells {
		if c.Service == HTTPBulk || c.Service == H2Bulk {
			t.Errorf("%v is measured by default", c)
		}
	}
}

func TestServiceCellHasAName(t *testing.T) {
	for c, want := range map[ServiceCell]string{
		{TCP, 1, 2}:    "tcp, 1 connection, GOMAXPROCS 2",
		{NATS, 16, 10}: "nats, 16 connections, GOMAXPROCS 10",
	} {
		if c.String() != want {
			t.Errorf("%q, want %q", c, want)
		}
	}
}
