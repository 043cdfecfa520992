// Package version says from which version of the module a command was built.
package version

import (
	"runtime"
	"runtime/debug"
	"strings"
)

const module = "github.com/unet-go/unet"

// Line is what a command prints for --version: its name, the module's version, what
// else the command has to say, and with what it was built.
func Line(command string, also ...string) string {
	parts := append([]string{command + " " + Of()}, also...)
	return strings.Join(append(parts, runtime.Version()+" "+runtime.GOOS+"/"+runtime.GOARCH), ", ")
}

// Of is the version of the module that this command was built from.
func Of() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return of(info)
	}
	return "devel"
}

// of is the version of this module, or of the repository's module bench: its tag, or
// what go build makes of the commit (https://go.dev/ref/mod#pseudo-versions), with
// +dirty if files had been changed. It is "devel" where go build was told no version, as for tests.
func of(info *debug.BuildInfo) string {
	version := info.Main.Version
	if info.Main.Path != module && !strings.HasPrefix(info.Main.Path, module+"/") { // built as a tool of another module
		version = ""
		for _, m := range info.Deps {
			if m.Path == module && m.Replace == nil {
				version = m.Version
			}
		}
	}
	if version == "" || version == "(devel)" {
		return "devel"
	}
	return version
}
