package unetd

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
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
		built.err = os.Chmod(built.dir, 0o755) // the users who run them are not root
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
