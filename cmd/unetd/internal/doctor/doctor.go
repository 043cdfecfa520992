//go:build linux

package doctor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Verdict is what a finding means for unetd.
type Verdict string

const (
	OK      Verdict = "ok"
	Note    Verdict = "note"    // does not fail the examination
	Problem Verdict = "problem" // does
)

// Finding is the result of one check.
type Finding struct {
	Area    string  `json:"area"` // system, files, or the name of an interface
	Check   string  `json:"check"`
	Verdict Verdict `json:"verdict"`
	Found   string  `json:"found"`
	Remedy  string  `json:"remedy,omitempty"` // what to do; a command where there is one
}

// Config says what is examined.
type Config struct {
	Interface string // "": all that unetd could serve and that have an address
	Socket    string // where unetd listens
	BPFFS     string // where it pins
	Policy    string // the policy file; "": policy.DefaultFile, if it exists

	root string // the folder with proc and sys; "": /
}

// Examine makes all checks, in a second or two.
func Examine(ctx context.Context, cfg Config) []Finding {
	e := &examination{Config: cfg}
	for _, area := range []struct {
		name  string
		check func(context.Context, *examination)
	}{{"system", system}, {"files", files}, {"", interfaces}} {
		e.area = area.name
		area.check(ctx, e)
	}
	return e.findings
}

// examination collects findings.
type examination struct {
	Config
	area     string
	findings []Finding
}

func (e *examination) add(check string, v Verdict, remedy, found string, args ...any) {
	if len(args) > 0 {
		found = fmt.Sprintf(found, args...)
	}
	e.findings = append(e.findings, Finding{e.area, check, v, oneLine(found), oneLine(remedy)})
}

func (e *examination) ok(check, found string, args ...any) { e.add(check, OK, "", found, args...) }

func (e *examination) note(check, remedy, found string, args ...any) {
	e.add(check, Note, remedy, found, args...)
}

func (e *examination) problem(check, remedy, found string, args ...any) {
	e.add(check, Problem, remedy, found, args...)
}

// unseen notes that a check was not possible.
func (e *examination) unseen(check string, err error) {
	remedy := ""
	if os.Geteuid() != 0 {
		remedy = "run unetd doctor as root"
	}
	e.note(check, remedy, "not examined: %v", err)
}

// read returns a file of proc or sys without the white space around it.
func (e *examination) read(path string) (string, error) {
	text, err := os.ReadFile(filepath.Join(e.root, "/", path))
	return strings.TrimSpace(string(text)), err
}

func oneLine(s string) string { return strings.ReplaceAll(strings.TrimSpace(s), "\n", "; ") }
