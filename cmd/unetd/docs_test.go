//go:build linux

package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// docs/operations.md lists its sections at its top, and has each command of unetd with its output.
func TestOperationsDocument(t *testing.T) {
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	top, _, _ := strings.Cut(string(text), "\n## ")
	var listed, sections []string
	for _, m := range regexp.MustCompile(`(?m)^- \[(.+)\]\(#(.+)\)$`).FindAllStringSubmatch(top, -1) {
		listed = append(listed, m[1])
		anchor := strings.ReplaceAll(regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")
		if m[2] != anchor {
			t.Errorf("%s: link to %s, want %s", m[1], m[2], anchor)
		}
	}
	for _, m := range regexp.MustCompile(`(?m)(\n?\n)## (.+)\n(\n?)`).FindAllStringSubmatch(string(text), -1) {
		if sections = append(sections, m[2]); m[1] != "\n\n" || m[3] != "\n" {
			t.Errorf("no empty lines around %q", m[2])
		}
	}
	if !slices.Equal(listed, sections) {
		t.Errorf("the list at the top:\n%s\nbut the sections:\n%s", strings.Join(listed, "\n"), strings.Join(sections, "\n"))
	}
	for _, c := range newRoot(newLogWriter(os.Stderr)).Commands() {
		shown := regexp.MustCompile("(?m)^[#$] unetd " + regexp.QuoteMeta(c.Name()) + `\b`).MatchString(string(text))
		if !c.Hidden && !shown {
			t.Errorf("the document does not show unetd %s", c.Name())
		}
		if !c.Hidden && c.Example == "" && c.Name() != "version" {
			t.Errorf("unetd %s --help has no example", c.Name())
		}
	}
}
