//go:build linux

package show

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/account"
)

// ErrUnbalanced: frames have disappeared that no counter counts.
var ErrUnbalanced = errors.New("the counters do not add up")

// Check writes whether the counters of the unetd at socket add up. If they do not, though no
// traffic flows, the error is ErrUnbalanced.
func Check(ctx context.Context, socket string, w io.Writer, asJSON bool) error {
	var list []endpoint.Counter
	verdict, err := account.Settle(ctx, func() (_ []endpoint.Counter, err error) {
		list, err = control.Operator{Socket: socket}.Counters(ctx)
		return list, err
	})
	if err != nil {
		return err
	}
	if asJSON {
		err = writeJSON(w, struct {
			Totals []account.Total `json:"totals"`
			account.Verdict
			Balanced bool `json:"balanced"`
		}{account.Totals(list), verdict, verdict.Balanced()})
	} else {
		err = check(w, account.Totals(list), verdict)
	}
	if err == nil && !verdict.Balanced() && !verdict.Moving {
		err = fmt.Errorf("%w: see docs/operations.md", ErrUnbalanced)
	}
	return err
}

func check(w io.Writer, totals []account.Total, verdict account.Verdict) error {
	t := table(w)
	for _, total := range totals {
		var parts []string
		for _, f := range []account.Outcome{account.Redirected, account.Passed, account.Cut, account.Dropped} {
			if n := total.Of[f]; n > 0 {
				parts = append(parts, fmt.Sprintf("%d %s", n, f))
			}
		}
		if len(parts) == 0 {
			parts = []string{"-"}
		}
		what := map[string]string{"rx": "received", "tx": "sent by endpoints", "mux": "sent for endpoints", "deliver": "at the ends of ports", "lost": "lost by the kernel"}[total.Stage]
		fmt.Fprintf(t, "%s\t%d\t%s\n", what, total.Frames, strings.Join(parts, ", "))
	}
	found := "they add up"
	switch n := verdict.Missing(); {
	case n > 0 && verdict.Moving:
		found = fmt.Sprintf("%d are on their way or lost: traffic flows", n)
	case n < 0 && verdict.Moving:
		found = fmt.Sprintf("%d more than that: traffic flows", -n)
	case n > 0:
		found = fmt.Sprintf("%d HAVE DISAPPEARED", n)
	case n < 0:
		found = fmt.Sprintf("%d ARE NOT OF THE MUX", -n)
	}
	fmt.Fprintf(t, "to ports\t%d\t%d arrived or counted as lost: %s\n", verdict.In, verdict.Out, found)
	return t.Flush()
}
