//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet/examples/internal/lab"
	"github.com/unet-go/unet/internal/netlab"
)

// serve runs a server on a host until the test ends.
func serve(t *testing.T, at *netlab.Host, address string) {
	t.Helper()
	lab.RequirePostgres(t)
	cmd := exec.Command("./server", address)
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := at.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("the server has printed %q: %v", line, err)
	}
}

// TestPostgres uses a PostgreSQL server on kernel sockets over unet.
func TestPostgres(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	serve(t, pair.B, "10.0.0.2")
	host := lab.Host(t, pair.A)
	const url = "postgres://unet@10.0.0.2/postgres"
	conn, err := connect(t.Context(), host, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())

	t.Run("bulk", func(t *testing.T) {
		if _, err := conn.Exec(t.Context(), "create table t (n int, s text)"); err != nil {
			t.Fatal(err)
		}
		var want bytes.Buffer
		for n := range 16000 {
			fmt.Fprintf(&want, "%d\t%s\n", n, strings.Repeat(string(rune('a'+n%26)), 1000))
		}
		if _, err := conn.PgConn().CopyFrom(t.Context(), bytes.NewReader(want.Bytes()), "copy t from stdin"); err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		if _, err := conn.PgConn().CopyTo(t.Context(), &got, "copy t to stdout"); err != nil || !bytes.Equal(got.Bytes(), want.Bytes()) {
			t.Errorf("%d bytes have come back of %d, %v", got.Len(), want.Len(), err)
		}
	})

	// The connection waits for what the server sends without being asked.
	t.Run("notification", func(t *testing.T) {
		other, err := connect(t.Context(), host, url)
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close(context.Background())
		if _, err := conn.Exec(t.Context(), "listen news"); err != nil {
			t.Fatal(err)
		}
		notified := make(chan error, 1)
		go func() {
			n, err := conn.WaitForNotification(t.Context())
			if err == nil && n.Payload != "hello" {
				err = fmt.Errorf("notified of %q", n.Payload)
			}
			notified <- err
		}()
		if _, err := other.Exec(t.Context(), "notify news, 'hello'"); err != nil {
			t.Fatal(err)
		}
		if err := <-notified; err != nil {
			t.Error(err)
		}
	})

	// pgx ends a query by a deadline in the past, and then has to close the connection.
	t.Run("query given up", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := conn.Exec(ctx, "select pg_sleep(3600)")
		var timeout net.Error
		if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &timeout) || !timeout.Timeout() || !conn.IsClosed() {
			t.Errorf("%v, closed: %t; want a timeout, and the connection closed", err, conn.IsClosed())
		}
	})
	t.Run("no server", func(t *testing.T) {
		if _, err := connect(t.Context(), host, "postgres://unet@10.0.0.2:7/postgres"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%v, want ECONNREFUSED", err)
		}
	})
}
