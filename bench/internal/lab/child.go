package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
)

// openTimeout bounds how long a transport may take to open.
const openTimeout = 15 * time.Second

// RunChild is the main function of the hidden command child, one side of a benchmark of messages: it reads
// a job, and writes its report. A server first writes a line when it can be dialled, and goes on after its
// report until the lab ends it.
func RunChild(ctx context.Context, in io.Reader, out io.Writer) error {
	var j workload.Job
	if err := json.NewDecoder(in).Decode(&j); err != nil {
		return fmt.Errorf("job: %w", err)
	}
	listening := func() {}
	if j.Role == workload.Server {
		listening = sync.OnceFunc(func() { fmt.Fprintln(out, "listening") })
	}
	opening, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	return transport.Run(opening, j, listening, func(r workload.Report) error { return json.NewEncoder(out).Encode(r) })
}
