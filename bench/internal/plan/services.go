package plan

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Names of services.
const (
	TCP        = "tcp"
	HTTP       = "http"
	H2TLS      = "h2tls"
	GRPC       = "grpc"
	GRPCStream = "grpcstream"
	Redis      = "redis"
	NATS       = "nats"
	QUIC       = "quic"
	HTTPBulk   = "httpbulk"
	H2Bulk     = "h2bulk"
)

// ServiceList are the services in the order of the tables.
var ServiceList = []struct{ Name, About string }{
	{TCP, "echo over package net's interfaces, a goroutine a connection"},
	{HTTP, "net/http, HTTP/1.1, GET"},
	{H2TLS, "net/http, HTTP/2 over TLS, GET"},
	{GRPC, "gRPC, unary calls"},
	{GRPCStream, "gRPC, messages on a bidirectional stream"},
	{Redis, "GET from resp (examples/resp), a server of Redis' protocol"},
	{NATS, "an embedded nats-server, request and reply"},
	{QUIC, "quic-go, messages on a stream"},
	{HTTPBulk, "http with answers of 1 MiB"},
	{H2Bulk, "h2tls with answers of 1 MiB"},
}

// AboutServices is what --help says about the services.
func AboutServices() (text string) {
	for _, s := range ServiceList {
		text += fmt.Sprintf("  %-10s %s\n", s.Name, s.About)
	}
	return text
}

// ServiceNames are the names of ServiceList.
func ServiceNames() (names []string) {
	for _, s := range ServiceList {
		names = append(names, s.Name)
	}
	return names
}

// DefaultProcs as an element of [Services.Procs] is what the Go runtime sets GOMAXPROCS to.
const DefaultProcs = "default"

// maxServiceConnections is bounded by the ports that a client has to itself.
const maxServiceConnections = 1000

// Services selects what unetbench services measures: all combinations.
type Services struct {
	Services    []string
	Connections []int
	Procs       []string // GOMAXPROCS of client and server: numbers, or DefaultProcs
	Rounds      int
	WarmUp      time.Duration
	Duration    time.Duration // measured time of a round
}

// DefaultServices is the matrix that is measured without flags: all services with small answers.
func DefaultServices() Services {
	return Services{
		Services:    slices.DeleteFunc(ServiceNames(), func(s string) bool { return s == HTTPBulk || s == H2Bulk }),
		Connections: []int{1, 16, 64},
		Procs:       []string{"1", "2", DefaultProcs},
		Rounds:      5,
		WarmUp:      200 * time.Millisecond,
		Duration:    time.Second,
	}
}

// ServiceCell is one cell of the matrix. It is measured on both networks.
type ServiceCell struct {
	Service     string `json:"service"`
	Connections int    `json:"connections"`
	Procs       int    `json:"procs"` // GOMAXPROCS. With 1 client and server are pinned to a processor each.
}

func (c ServiceCell) String() string {
	plural := "s"
	if c.Connections == 1 {
		plural = ""
	}
	return fmt.Sprintf("%s, %d connection%s, GOMAXPROCS %d", c.Service, c.Connections, plural, c.Procs)
}

// Cells are the cells of the matrix in the order of the tables, each once. The error is about a flag.
func (s Services) Cells() (cells []ServiceCell, err error) {
	procs, err := s.procs()
	switch {
	case err != nil:
		return nil, err
	case len(s.Services) == 0:
		return nil, errors.New("--services is empty")
	case len(s.Connections) == 0:
		return nil, errors.New("--connections is empty")
	case s.Rounds < 1:
		return nil, fmt.Errorf("--rounds %d: want at least 1", s.Rounds)
	case s.WarmUp < 0:
		return nil, fmt.Errorf("--warm-up %v: want 0 or more", s.WarmUp)
	case s.Duration <= 0:
		return nil, fmt.Errorf("--duration %v: want more than 0", s.Duration)
	}
	for _, name := range s.Services {
		if !slices.Contains(ServiceNames(), name) {
			return nil, fmt.Errorf("--services %s: want some of %s", name, strings.Join(ServiceNames(), ", "))
		}
	}
	for _, n := range s.Connections {
		if n < 1 || n > maxServiceConnections {
			return nil, fmt.Errorf("--connections %d: want 1 to %d", n, maxServiceConnections)
		}
	}
	for _, p := range procs {
		for _, name := range ServiceNames() {
			for _, n := range s.Connections {
				if c := (ServiceCell{name, n, p}); slices.Contains(s.Services, name) && !slices.Contains(cells, c) {
					cells = append(cells, c)
				}
			}
		}
	}
	return cells, nil
}

// procs reads Procs.
func (s Services) procs() (all []int, err error) {
	if len(s.Procs) == 0 {
		return nil, errors.New("--procs is empty")
	}
	for _, text := range s.Procs {
		n := runtime.GOMAXPROCS(0)
		if text != DefaultProcs {
			if n, err = strconv.Atoi(text); err != nil || n < 1 {
				return nil, fmt.Errorf("--procs %s: want a number of at least 1, or %s", text, DefaultProcs)
			}
		}
		all = append(all, n)
	}
	return all, nil
}
