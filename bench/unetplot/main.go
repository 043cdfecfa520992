// Command unetplot draws what unetbench measured. It is not part of unetbench: the drawing
// library would add 3.6 MB to the resident memory of each measured process. See unetplot --help.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/bench/internal/cli"
	"github.com/unet-go/unet/bench/internal/report"
	"github.com/unet-go/unet/bench/internal/workload"
)

func main() {
	cmd := newCommand()
	cli.Exit(cmd, cmd.Execute()) // an interrupt ends it: a picture of a part of a run is not wanted
}

func newCommand() *cobra.Command {
	return cli.Root(&cobra.Command{
		Use:   "unetplot",
		Short: "Draw the round trips and one way rates of unetbench --json as SVG",
		Long: `unetplot reads the JSON lines of unetbench --json from standard input, and writes one
SVG: round-trip times by message size, and messages a second one way. It draws rounds of
rtt and oneway in spin mode, of messages sent one at a time, and ignores other records.
It needs no root.`,
		Example: `  unetplot < all.jsonl > rtt.svg
  sudo unetbench all --json | unetplot > rtt.svg`,
		Args: cli.Args(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			rows, err := read(cmd.InOrStdin())
			if err != nil {
				return err
			}
			var picture bytes.Buffer // nothing is written of what cannot be drawn
			if err := draw(&picture, rows); err != nil {
				return err
			}
			_, err = picture.WriteTo(cmd.OutOrStdout())
			return err
		},
	})
}

// least and most bound what can have been measured, in microseconds or messages a
// second: a clock counts nanoseconds, and no round lasts for hours.
const least, most = 1e-3, 1e10

// read reads JSON lines to their end and keeps what is drawn. Rounds in which nothing arrived are left out. An
// error of the contents is one of usage.
func read(r io.Reader) ([]report.Row, error) {
	var (
		records []report.Record
		cases   []workload.Case // in order of appearance
	)
	scanner := bufio.NewScanner(r) // a record is far shorter than its buffer
	for n := 1; scanner.Scan(); n++ {
		var rec report.Record
		switch {
		case len(bytes.TrimSpace(scanner.Bytes())) == 0:
			continue
		case json.Unmarshal(scanner.Bytes(), &rec) != nil:
			return nil, cli.Usage(fmt.Errorf("line %d: is no record of unetbench: was it run with --json?", n))
		case !drawn(rec.Case) || rec.N == 0:
			continue
		}
		v := rec.MsgsPerS
		if rec.Bench == workload.RTT {
			if v = 0; rec.P50US != nil {
				v = *rec.P50US
			}
		}
		if !(v >= least && v <= most) || rec.Size < 1 {
			return nil, cli.Usage(fmt.Errorf("line %d: a figure of %g, size %d: want %g to %g, at least 1", n, v, rec.Size, least, most))
		}
		if !slices.Contains(cases, rec.Case) {
			cases = append(cases, rec.Case)
		}
		records = append(records, rec)
	}
	if err := scanner.Err(); err != nil {
		return nil, err
	}
	if len(records) == 0 {
		return nil, cli.Usage(errors.New("nothing to draw: want rounds of rtt or oneway, spinning, one message at a time"))
	}
	return report.Summarize(cases, records).Rows, nil
}

// drawn reports whether the picture shows a case.
func drawn(c workload.Case) bool {
	return (c.Bench == workload.RTT || c.Bench == workload.OneWay) && c.Batch == 1 && c.Place == workload.Pair && c.Waiters == 0 && c.Procs == 0 &&
		slices.ContainsFunc(series, func(s style) bool { return s.transport == c.Transport && s.wait == c.Wait })
}
