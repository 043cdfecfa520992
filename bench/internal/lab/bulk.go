package lab

import (
	"context"
	"fmt"

	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/internal/netlab"
)

// Net is what bandwidth asks of a pair.
type Net struct {
	Network transport.Network
	MTU     int
}

func (n Net) muxed() bool { return n.Network == transport.Muxed }

// openBulk makes a pair for bandwidth, with daemons if it is a muxed one.
func (l *Lab) openBulk(ctx context.Context, n Net) (err error) {
	if l.bulk == nil {
		l.bulk = map[Net]*site{}
	}
	cfg := netlab.Config{MTU: n.MTU}
	if n.muxed() {
		s, err := l.openSite(ctx, fmt.Sprintf("mtu%d", n.MTU), cfg)
		if err == nil {
			l.bulk[n] = s
		}
		return err
	}
	pair, err := netlab.NewPair(cfg)
	if err != nil {
		return err
	}
	l.bulk[n] = &site{pair: pair}
	if n.Network != transport.Unsegmented {
		return nil
	}
	for _, h := range []*netlab.Host{pair.A, pair.B} {
		if err := h.Do(func() error { return netlab.SetSegmentation(h.Interface, false) }); err != nil {
			return err
		}
	}
	return nil
}
