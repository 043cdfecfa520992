//go:build linux

// Package examples tests that the commands in the README of each example print what it says.
package examples

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/unet-go/unet/examples/internal/lab"
	"github.com/unet-go/unet/internal/netlab"
)

// varying are times, addresses of ports and numbers of RDMA, which differ from run to run.
var varying = regexp.MustCompile(`0x[0-9a-f]+|[0-9]+(\.[0-9]+)?(ns|µs|ms|s)?`)

// TestReadmes runs the commands of each README, which need what make build makes.
func TestReadmes(t *testing.T) {
	netlab.RequireXDP(t)
	for _, tool := range []string{"bash", "ip", "nsenter", "unshare", "mount", "curl", "redis-cli"} {
		if _, err := exec.LookPath(tool); err != nil && os.Getenv("UNET_REQUIRE_TOOLS") == "1" {
			t.Fatal(err)
		} else if err != nil {
			t.Skip(err)
		}
	}
	paths, err := filepath.Glob("*/README.md")
	if err != nil {
		t.Fatal(err)
	}
	commands := 0
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range strings.Split(string(text), "\n$ ")[1:] {
			command, output, _ := strings.Cut(block, "\n")
			if !strings.HasPrefix(command, "examples/run ") {
				continue
			}
			commands++
			output, _, _ = strings.Cut(output, "```")
			t.Run(filepath.Dir(path), func(t *testing.T) {
				if strings.Contains(command, "postgres") {
					lab.RequirePostgres(t)
				}
				check(t, command, output)
			})
		}
	}
	if commands < 10 {
		t.Errorf("%d commands in READMEs", commands)
	}
}

func check(t *testing.T, command, want string) {
	cmd := exec.Command("bash", "-c", command)
	cmd.Dir = ".."
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	got, err := cmd.Output()
	mask := func(s string) string { return varying.ReplaceAllString(s, "N") }
	if err != nil || mask(string(got)) != mask(want) || strings.Contains(stderr.String(), "falling back") {
		t.Errorf("%s: %v\n%s\nthe README says:\n%s\nstandard error:\n%s", command, err, got, want, &stderr)
	}
}
