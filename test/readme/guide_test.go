//go:build linux

package readme

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/test/internal/unetd"
)

// TestGuide pastes all blocks of docs/guide.md into one bash. Each line of the output that the guide
// shows is in what the block before prints.
func TestGuide(t *testing.T) {
	netlab.RequireXDP(t)
	for _, tool := range []string{"ip", "nsenter", "mount", "curl"} {
		unetd.Tool(t, tool)
	}
	text, err := os.ReadFile("../../docs/guide.md")
	if err != nil {
		t.Fatal(err)
	}
	const separator = "==== end of a block\n"
	var script strings.Builder
	script.WriteString("set -e\nmount -t tmpfs tmpfs /run\nmount -t bpf bpf /sys/fs/bpf\n")
	var want [][]string // of each block
	rest := string(text)
	for {
		_, after, ok := strings.Cut(rest, "\n```")
		if !ok {
			break
		}
		kind, after, _ := strings.Cut(after, "\n")
		block, after, _ := strings.Cut(after, "\n```\n")
		rest = "\n" + after
		switch kind {
		case "bash":
			script.WriteString(block + "\nprintf '" + strings.ReplaceAll(separator, "\n", `\n`) + "'\n")
			want = append(want, nil)
		case "text":
			last := len(want) - 1
			want[last] = append(want[last], strings.Split(block, "\n")...)
		default:
			t.Errorf("a block of %q in docs/guide.md is not executed", kind)
		}
	}
	dir := t.TempDir()
	bash := exec.Command("bash", "-s")
	bash.Dir = dir
	bash.Env = append(os.Environ(), moduleProxy(t)...)
	bash.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Setpgid: true}
	bash.Stdin = strings.NewReader(script.String())
	var stdout, stderr bytes.Buffer
	bash.Stdout, bash.Stderr = &stdout, &stderr
	if err := bash.Start(); err != nil {
		t.Fatal(err)
	}
	hung := time.AfterFunc(15*time.Minute, func() { syscall.Kill(-bash.Process.Pid, syscall.SIGKILL) })
	err = bash.Wait() // for all that holds stdout, unetd and the service among them
	hung.Stop()
	syscall.Kill(-bash.Process.Pid, syscall.SIGKILL) // what an unfinished run has left
	if err != nil {
		t.Errorf("the last command: %v", err)
	}
	printed := strings.Split(stdout.String(), separator)
	if len(printed) != len(want)+1 || len(want) < 10 {
		t.Errorf("%d of %d blocks were executed", len(printed)-1, len(want))
	}
	for i := range min(len(want), len(printed)) {
		for _, line := range want[i] {
			if !strings.Contains(printed[i], line) {
				t.Errorf("block %d does not print %q", i+1, line)
			}
		}
	}
	if t.Failed() {
		for _, host := range []string{"a", "b"} { // an unfinished run has not removed them
			exec.Command("ip", "netns", "del", "guide-"+host).Run()
		}
		log, _ := os.ReadFile(dir + "/hits/unetd.log")
		t.Logf("stdout:\n%s\nstderr:\n%s\nlog of unetd:\n%s", stdout.String(), stderr.String(), log)
	}
}
