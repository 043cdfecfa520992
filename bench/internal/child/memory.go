package child

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
)

// weigh opens what the job asks for and reports how much memory the idle
// process has resident. Without a transport it is the bare process that the
// others are compared with.
func weigh(ctx context.Context, j workload.Job, in *bufio.Reader, events *json.Encoder) (err error) {
	if j.Transport != "" {
		t, err := transport.ByName(j.Transport)
		if err != nil {
			return err
		}
		conn, err := t.Open(ctx, j)
		if err != nil {
			return fmt.Errorf("open %s: %w", t.Name, err)
		}
		defer func() { err = errors.Join(err, conn.Close()) }()
	}
	size, err := settled()
	if err != nil {
		return err
	}
	if err := events.Encode(Event{Ready: true, Report: &workload.Report{Resident: size}}); err != nil {
		return err
	}
	awaitEnd(in)
	return nil
}

// resident is VmRSS of this process in bytes: all pages it has mapped that are
// in memory, the shared ones of the segment included (proc_pid_status(5)).
func resident() (int64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(status) {
		if v, ok := bytes.CutPrefix(line, []byte("VmRSS:")); ok {
			kib, err := strconv.ParseInt(string(bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(v), []byte("kB")))), 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("no VmRSS in /proc/self/status")
}
