package lab

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/netlab/impair"
)

// CrowdSize is the number of endpoints that idle on each host of the crowded
// pair. With the one that is measured there are 256.
const CrowdSize = 255

// site is a pair of hosts with a daemon each.
type site struct {
	name    string
	dir     string
	pair    *netlab.Pair
	link    *impair.Link // if it is impaired
	daemons []*daemon
	idle    []func() error // gives an endpoint of the crowd back
}

func (l *Lab) openSite(ctx context.Context, name string, cfg netlab.Config) (_ *site, err error) {
	s := &site{name: name, dir: l.dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.pair, s.link, err = l.cable(cfg); err != nil {
		return nil, err
	}
	for _, h := range []*netlab.Host{s.pair.A, s.pair.B} {
		d, err := startDaemon(ctx, h, l.cfg.Unetd, "--socket", s.socket(h), "--policy", l.policy(), "--bpffs", netlab.PathTo(l.pins))
		if err != nil {
			return nil, err
		}
		s.daemons = append(s.daemons, d)
	}
	return s, nil
}

// socket is that of a host's daemon.
func (s *site) socket(h *netlab.Host) string {
	return filepath.Join(s.dir, s.name+"-"+h.Name+".sock")
}

// idle is the geometry of an endpoint in the crowd, 512 KiB: of what does nothing the
// size does not matter, and five hundred of the default one take 4 GiB.
var idle = endpoint.Geometry{FrameCount: 256, FillSize: 128, CompletionSize: 128, RxSize: 128, TxSize: 128}

// fill opens the crowd.
func (s *site) fill(ctx context.Context) error {
	for _, h := range []*netlab.Host{s.pair.A, s.pair.B} {
		for range CrowdSize {
			_, giveBack, err := s.open(ctx, h, idle)
			if err != nil {
				return fmt.Errorf("crowd on host %s: %w", h.Name, err)
			}
			s.idle = append(s.idle, giveBack)
		}
	}
	return nil
}

// open opens an endpoint with a message tag through the host's daemon, as this
// process, and says how long that took.
func (s *site) open(ctx context.Context, h *netlab.Host, g endpoint.Geometry) (took time.Duration, giveBack func() error, err error) {
	begin := time.Now()
	grant, lease, err := control.Open(ctx, s.socket(h), endpoint.Request{Geometry: g, Tags: []endpoint.Tag{endpoint.MessageTag(0)}})
	if err != nil {
		return 0, nil, err
	}
	return time.Since(begin), func() error { return errors.Join(grant.Close(), lease.Close()) }, nil
}

func (s *site) close() error {
	var errs []error
	for _, giveBack := range s.idle {
		errs = append(errs, giveBack())
	}
	for _, d := range s.daemons {
		errs = append(errs, d.stop())
	}
	if s.link != nil {
		errs = append(errs, s.link.Close())
	}
	if s.pair != nil {
		errs = append(errs, s.pair.Close())
	}
	return errors.Join(errs...)
}

// OpenOnce opens a default endpoint through unetd, alone or in the crowd, says how
// long that took, and closes it again.
func (l *Lab) OpenOnce(ctx context.Context, place string) (time.Duration, error) {
	s := l.muxed
	if place == plan.Crowd {
		s = l.crowd
	}
	took, giveBack, err := s.open(ctx, s.pair.A, endpoint.Geometry{})
	if err != nil {
		return 0, err
	}
	return took, giveBack()
}
