//go:build linux

package main

import (
	"strings"
	"sync"
	"testing"

	"github.com/unet-go/unet/internal/netlab"
)

// The lines that other processes write meanwhile do not come between those of a command.
func TestAskShowsTheOutputAsAWhole(t *testing.T) {
	const output = "first\nsecond\nthird\n"
	var shown strings.Builder
	d := &demo{
		screen: screen{out: &shown},
		pair:   netlab.RequirePair(t, netlab.Config{}),
		cfg:    Config{Command: []string{"sh", "-c", "for line in first second third; do echo $line; done"}},
	}
	asked := make(chan struct{})
	var other sync.WaitGroup
	other.Go(func() {
		for {
			select {
			case <-asked:
				return
			default:
				d.say("of another process")
			}
		}
	})
	err := d.ask(t.Context())
	close(asked)
	other.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(shown.String(), output) {
		t.Errorf("the lines of the command are not together: %d bytes without %q", shown.Len(), output)
	}
}
