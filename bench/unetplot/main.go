// Command unetplot draws what unetbench measured. It is not part of unetbench: the drawing
// library would add 3.6 MB to the resident memory of each measured process. See unetplot --help.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/bench/internal/chart"
	"github.com/unet-go/unet/bench/internal/cli"
)

func main() {
	cmd := newCommand()
	cli.Exit(cmd, cmd.Execute()) // an interrupt ends it: a picture of a part of a run is not wanted
}

func newCommand() *cobra.Command {
	var output string
	cmd := cli.Root(&cobra.Command{
		Use:   "unetplot [FILE.jsonl]",
		Short: "Draw the round trips and one way rates of unetbench --json as SVG",
		Long: `unetplot reads the JSON lines of unetbench --json, from a file or from standard
input, and writes one SVG: round-trip times by message size, and messages a second
one way. It draws rounds of rtt and oneway in spin mode, of messages sent one at a
time, and ignores other records. It needs no root.`,
		Example: `  unetplot all.jsonl > rtt.svg
  sudo unetbench all --json | unetplot -o rtt.svg`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return cli.Usage(fmt.Errorf("%s takes one file, not %d", cmd.CommandPath(), len(args)))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			in, name := cmd.InOrStdin(), "standard input"
			if len(args) == 1 {
				file, err := os.Open(args[0])
				if err != nil {
					return cli.Usage(err)
				}
				defer file.Close()
				in, name = file, args[0]
			}
			picture, err := draw(in, name)
			if err != nil {
				return err
			}
			if output != "" {
				return os.WriteFile(output, picture, 0o666)
			}
			_, err = cmd.OutOrStdout().Write(picture)
			return err
		},
	})
	cmd.Flags().StringVarP(&output, "output", "o", "", "write the SVG to this file (default: standard output)")
	return cmd
}

// draw is the SVG of the records in in.
func draw(in io.Reader, name string) ([]byte, error) {
	figures, err := chart.Read(in)
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
		var bad *chart.InputError
		if errors.As(err, &bad) {
			err = cli.Usage(err)
		}
		return nil, err
	}
	var picture bytes.Buffer
	err = chart.Draw(&picture, figures)
	return picture.Bytes(), err
}
