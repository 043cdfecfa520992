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
		args := append([]string{"build", "-o", built.dir + "/"}, buildFlags...)
		args = append(args, "github.com/unet-go/unet/cmd/unetd", "github.com/unet-go/unet/examples/...")
		if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
			built.err = fmt.Errorf("go build: %w\n%s", err, out)
			return
		}
		built.err = os.Chmod(built.dir, 0o755) // the commands run as other users than root
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return filepath.Join(built.dir, name)
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
