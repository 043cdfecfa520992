//go:build linux

package unetd

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

var built struct {
	sync.Once
	dir string
	err error
}

// Command is the path of one of the project's commands, built once, with the
// race detector if the test has it.
func Command(t testing.TB, name string) string {
	t.Helper()
	built.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "unet-test-"); built.err != nil {
			return
		}
		if built.err = buildInto(built.dir); built.err == nil {
			built.err = os.Chmod(built.dir, 0o755) // the commands run as other users than root
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return filepath.Join(built.dir, name)
}

// buildInto builds unetd, and the examples, which are a module of their own.
func buildInto(dir string) error {
	gomod, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return fmt.Errorf("go env GOMOD: %w", err)
	}
	root := filepath.Dir(string(gomod))
	for module, packages := range map[string]string{root: "./cmd/unetd", filepath.Join(root, "examples"): "./..."} {
		args := append([]string{"build", "-C", module, "-o", dir + "/"}, buildFlags...)
		if out, err := exec.Command("go", append(args, packages)...).CombinedOutput(); err != nil {
			return fmt.Errorf("go build: %w\n%s", err, out)
		}
	}
	return nil
}

// Main is TestMain of a package that builds commands.
func Main(m *testing.M) {
	code := m.Run()
	Clean()
	os.Exit(code)
}

// Must ends the test if err is not nil.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Clean removes what [Command] has built. TestMain calls it at the end.
func Clean() error {
	if built.dir == "" {
		return nil
	}
	return errors.Join(built.err, os.RemoveAll(built.dir))
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

// Eventually checks a condition until it holds, and reports whether it did before
// [Patience] ended.
func Eventually(holds func() bool) bool {
	for deadline := time.Now().Add(Patience); ; time.Sleep(2 * time.Millisecond) {
		if holds() {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}
