package route_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/internal/route"
)

func TestInterruptedDumpIsRepeated(t *testing.T) {
	other := errors.New("another")
	for _, c := range []struct {
		interrupted int
		then        error
		want        error
	}{
		{0, nil, nil},
		{3, nil, nil},
		{3, other, other},
		{1000, nil, netlink.ErrDumpInterrupted},
	} {
		tries := 0
		got, err := route.Dump(func() ([]int, error) {
			if tries++; tries <= c.interrupted {
				return []int{1}, netlink.ErrDumpInterrupted // a part
			}
			return []int{1, 2}, c.then
		})
		if !errors.Is(err, c.want) || err == nil && !slices.Equal(got, []int{1, 2}) || err != nil && got != nil {
			t.Errorf("%+v: %v, %v", c, got, err)
		}
	}
}
