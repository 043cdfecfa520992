//go:build linux

package unetd

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// built are the commands that were built, in a folder of this process.
var built struct {
	sync.Mutex
	dir string // +checklocks:Mutex
	// +checklocks:Mutex
	commands map[string]error // by name
}

// Command is the path of unetd or of an example. It is built when it is first asked for, with the
// race detector if the test has it.
func Command(t testing.TB, name string) string {
	t.Helper()
	built.Lock()
	defer built.Unlock()
	if built.dir == "" {
		dir, err := os.MkdirTemp("", "unet-test-")
		if err != nil {
			t.Fatal(err)
		}
		built.dir, built.commands = dir, make(map[string]error)
		if err := os.Chmod(dir, 0o755); err != nil { // the commands run as other users than root
			t.Fatal(err)
		}
	}
	err, ok := built.commands[name]
	if !ok {
		err = build(name, built.dir)
		built.commands[name] = err
	}
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(built.dir, name)
}

// build builds a command into a folder. The examples are a module of their own.
func build(name, dir string) error {
	gomod, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return fmt.Errorf("go env GOMOD: %w", err)
	}
	module, path := filepath.Dir(string(gomod)), "./cmd/unetd"
	if name != "unetd" {
		module, path = filepath.Join(module, "examples"), "./"+name
	}
	args := append([]string{"build", "-C", module, "-o", dir + "/"}, buildFlags...)
	if out, err := exec.Command("go", append(args, path)...).CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

// Main is TestMain of a package that builds commands.
func Main(m *testing.M) {
	code := m.Run()
	Clean()
	os.Exit(code)
}

// Clean removes what [Command] has built. TestMain calls it at the end.
func Clean() error {
	built.Lock()
	defer built.Unlock()
	if built.dir == "" {
		return nil
	}
	return os.RemoveAll(built.dir)
}

// toolsVariable, set to 1, turns the skips of a machine without a tool into failures.
const toolsVariable = "UNET_REQUIRE_TOOLS"

// Tool is the path of a program that is not ours. Without it the test is skipped.
func Tool(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	switch {
	case err == nil:
	case os.Getenv(toolsVariable) == "1":
		t.Fatalf("%s=1, but %v", toolsVariable, err)
	default:
		t.Skipf("skipped: %v: install it (%s=1 makes this a failure)", err, toolsVariable)
	}
	return path
}
