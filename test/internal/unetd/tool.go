package unetd

import (
	"os"
	"os/exec"
	"testing"
)

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
