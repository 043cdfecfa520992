// Command unetplot draws what unetbench measured. It is not part of unetbench: the drawing
// library would add 3.6 MB to the resident memory of each measured process. See unetplot --help.
package main

import (
	"bytes"
	"errors"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/bench/internal/chart"
	"github.com/unet-go/unet/bench/internal/cli"
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
			figures, err := chart.Read(cmd.InOrStdin())
			if err != nil {
				var bad *chart.InputError
				if errors.As(err, &bad) {
					err = cli.Usage(err)
				}
				return err
			}
			var picture bytes.Buffer // nothing is written of what cannot be drawn
			if err := chart.Draw(&picture, figures); err != nil {
				return err
			}
			_, err = picture.WriteTo(cmd.OutOrStdout())
			return err
		},
	})
}
