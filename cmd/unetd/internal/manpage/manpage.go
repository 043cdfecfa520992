// Package manpage writes the manual pages of a command line in the language of man(7).
//
// github.com/spf13/cobra/doc is not used: it reads help texts as markdown, and ours are plain text ([ADR 42]).
//
// [ADR 42]: https://github.com/unet-go/unet/blob/main/docs/adr/0042-packaging.md
package manpage

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// Section is a section of a page, as plain text: paragraphs, and indented lines that stay as they are.
type Section struct{ Title, Text string }

// Set is the pages of a command and its subcommands, all in section 8 of the manual.
type Set struct {
	Root    *cobra.Command
	Date    string // of the source, as 2026-11-25; may be empty
	Version string

	Sections []Section // at the end of the root's page
}

// Write writes the pages to a folder, which it makes if it is missing.
func (s *Set) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, cmd := range append([]*cobra.Command{s.Root}, subcommands(s.Root)...) {
		if err := os.WriteFile(filepath.Join(dir, name(cmd)+".8"), []byte(s.page(cmd)), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// name is the name of a command's page, such as unetd-serve.
func name(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// subcommands are those that the help lists. They have no subcommands.
func subcommands(root *cobra.Command) (all []*cobra.Command) {
	for _, cmd := range root.Commands() {
		if cmd.IsAvailableCommand() && cmd.Name() != "help" {
			all = append(all, cmd)
		}
	}
	return all
}

func (s *Set) page(cmd *cobra.Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %s 8 %q %q \"System administration\"\n.nh\n.ad l\n", escape(strings.ToUpper(name(cmd))), s.Date, escape(s.Root.Name()+" "+s.Version))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", escape(name(cmd)), escape(cmd.Short))
	b.WriteString(".SH SYNOPSIS\n")
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\\fB%s\\fR COMMAND [ARGUMENT...]\n.br\n", escape(cmd.CommandPath()))
	}
	fmt.Fprintf(&b, "\\fB%s\\fR%s\n", escape(cmd.CommandPath()), escape(strings.TrimPrefix(cmd.UseLine(), cmd.CommandPath())))
	description := cmd.Long
	if description == "" {
		description = cmd.Short + "."
	}
	section(&b, "DESCRIPTION", description)
	commands := subcommands(cmd)
	if len(commands) > 0 {
		b.WriteString(".SH COMMANDS\n")
		for _, c := range commands {
			fmt.Fprintf(&b, ".TP\n\\fB%s\\fR(8)\n%s\n", escape(name(c)), escape(c.Short))
		}
	}
	options(&b, cmd)
	if cmd.Example != "" {
		section(&b, "EXAMPLES", cmd.Example)
	}
	if cmd == s.Root {
		for _, extra := range s.Sections {
			section(&b, extra.Title, extra.Text)
		}
	}
	also(&b, s.Root, cmd)
	return b.String()
}

// options writes the flags as pflag describes them: a line for each.
func options(b *strings.Builder, cmd *cobra.Command) {
	usages := cmd.LocalFlags().FlagUsages()
	if usages == "" {
		return
	}
	b.WriteString(".SH OPTIONS\n")
	for line := range strings.Lines(usages) {
		head, text, _ := strings.Cut(strings.TrimSpace(line), "  ")
		b.WriteString(".TP\n")
		for i, word := range strings.Fields(head) {
			font := `\fI`
			if strings.HasPrefix(word, "-") {
				font = `\fB`
			}
			if i > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(font + escape(word) + `\fR`)
		}
		fmt.Fprintf(b, "\n%s\n", escape(strings.TrimSpace(text)))
	}
}

// section writes plain text: paragraphs are filled, and lines that are indented stay as they are.
func section(b *strings.Builder, title, text string) {
	fmt.Fprintf(b, ".SH %s\n", title)
	literal, gap := false, ""
	for line := range strings.Lines(strings.Trim(text, "\n")) {
		line = strings.TrimRight(line, " \n")
		if indented := strings.HasPrefix(line, "  "); line != "" && indented != literal {
			switch literal = indented; {
			case literal:
				b.WriteString(gap + ".RS 2\n.nf\n")
			default:
				b.WriteString(".fi\n.RE\n" + gap)
			}
			gap = ""
		}
		switch {
		case line == "" && literal:
			gap = "\n"
		case line == "":
			gap = ".PP\n"
		default:
			b.WriteString(gap + escape(strings.TrimPrefix(line, "  ")) + "\n")
			gap = ""
		}
	}
	if literal {
		b.WriteString(".fi\n.RE\n")
	}
}

func also(b *strings.Builder, root, cmd *cobra.Command) {
	b.WriteString(".SH SEE ALSO\n")
	if cmd != root {
		fmt.Fprintf(b, "\\fB%s\\fR(8)\n.PP\n", escape(name(root)))
	}
	b.WriteString("https://github.com/unet\\-go/unet\n")
}

// escape returns text that roff prints as it is: none of it is read as a request.
func escape(text string) string {
	text = strings.NewReplacer(`\`, `\e`, `-`, `\-`, `'`, `\(aq`, "`", `\(ga`, `^`, `\(ha`, `~`, `\(ti`).Replace(text)
	if strings.HasPrefix(text, ".") {
		text = `\&` + text
	}
	return text
}
