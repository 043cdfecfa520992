//go:build linux

package show

import (
	"fmt"
	"io"
	"strings"

	"github.com/unet-go/unet/cmd/unetd/internal/doctor"
)

// Findings writes the findings of unetd doctor, and returns the number of problems among them.
func Findings(w io.Writer, list []doctor.Finding, asJSON bool) (problems int, err error) {
	notes := 0
	for _, f := range list {
		switch f.Verdict {
		case doctor.Problem:
			problems++
		case doctor.Note:
			notes++
		}
	}
	if asJSON {
		return problems, writeJSON(w, struct {
			OK       bool             `json:"ok"`
			Problems int              `json:"problems"`
			Notes    int              `json:"notes"`
			Findings []doctor.Finding `json:"findings"`
		}{problems == 0, problems, notes, list})
	}
	var b strings.Builder
	area, width := "", 0
	for _, f := range list {
		width = max(width, len(f.Check))
	}
	for _, f := range list {
		if f.Area != area {
			area = f.Area
			fmt.Fprintln(&b, area)
		}
		fmt.Fprintf(&b, "  %-7s  %-*s  %s\n", f.Verdict, width, f.Check, f.Found)
		if f.Remedy != "" {
			fmt.Fprintf(&b, "  %-7s  %-*s  -> %s\n", "", width, "", f.Remedy)
		}
	}
	fmt.Fprintf(&b, "%d ok, %d to note, %d with a problem\n", len(list)-notes-problems, notes, problems)
	_, err = io.WriteString(w, b.String())
	return problems, err
}
