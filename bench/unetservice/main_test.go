package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/unet-go/unet/bench/internal/cli"
	"github.com/unet-go/unet/bench/internal/load"
)

// execute runs a command line.
func execute(ctx context.Context, out io.Writer, args ...string) error {
	cmd := newCommand()
	cmd.SetArgs(args)
	cmd.SetOut(out)
	cmd.SetErr(io.Discard)
	return cmd.ExecuteContext(ctx)
}

func TestWrongCommandLinesAreUsageErrors(t *testing.T) {
	for _, line := range []string{
		"", "now", "serve", "serve tcp", "serve smtp 127.0.0.1:1", "serve redis 127.0.0.1:1", "serve tcp 127.0.0.1:1 --unet-wait impatiently",
		"ask", "ask smtp 127.0.0.1:1", "ask tcp 127.0.0.1:1 --connections 0", "ask tcp 127.0.0.1:1 --duration 0s", "ask tcp 127.0.0.1:1 --warm-up -1s",
		"ask tcp 127.0.0.1:1 --server-pid -1",
	} {
		err := execute(t.Context(), io.Discard, strings.Fields(line)...)
		if !cli.IsUsage(err) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, want a usage error of one line", line, err)
		}
	}
}

// TestServeAndAsk measures a service on kernel sockets.
func TestServeAndAsk(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	said, says := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := execute(ctx, says, "serve", "http", "127.0.0.1:0", "--kernel")
		says.CloseWithError(errors.Join(err, io.EOF))
		ended <- err
	}()
	var address string
	if _, err := fmt.Fscanf(said, "listening on %s\n", &address); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := execute(t.Context(), &out, "ask", "http", address, "--kernel", "--connections", "2", "--warm-up", "0s", "--duration", "20ms"); err != nil {
		t.Fatal(err)
	}
	var r load.Result
	if err := json.Unmarshal(out.Bytes(), &r); err != nil || r.Failed != 0 || r.Lost != 0 || r.Least+r.Most != r.N || r.CPUUS <= 0 {
		t.Errorf("%s, %v", &out, err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := execute(t.Context(), io.Discard, "ask", "http", address, "--kernel"); err == nil || !strings.Contains(err.Error(), "connection 1: ") {
		t.Errorf("%v", err)
	}
}
