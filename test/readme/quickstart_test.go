//go:build linux

package readme

import (
	"archive/zip"
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/test/internal/unetd"
)

// TestQuickstart pastes the quickstart of README.md into bash, and then the lines
// that remove it. Module unet is the one of this folder, served as a Go module
// proxy would. The mount namespace is the test's own, so that names in /run and in
// /sys/fs/bpf do not conflict with others.
func TestQuickstart(t *testing.T) {
	netlab.RequireXDP(t)
	for _, tool := range []string{"ip", "nsenter", "mount"} {
		unetd.Tool(t, tool)
	}
	start, remove := quickstart(t)
	dir := t.TempDir()
	const private = "mount -t tmpfs tmpfs /run && mount -t bpf bpf /sys/fs/bpf\n"
	bash := exec.Command("bash", "-s")
	bash.Dir = dir
	bash.Env = append(os.Environ(), moduleProxy(t)...)
	bash.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Setpgid: true}
	bash.Stdin = strings.NewReader(private + start + "\n" + `echo "status $?"` + "\n" + remove)
	var stdout, stderr bytes.Buffer
	bash.Stdout, bash.Stderr = &stdout, &stderr
	if err := bash.Start(); err != nil {
		t.Fatal(err)
	}
	hung := time.AfterFunc(15*time.Minute, func() { syscall.Kill(-bash.Process.Pid, syscall.SIGKILL) })
	err := bash.Wait() // for all that holds stdout, unetd and the server among them
	hung.Stop()
	syscall.Kill(-bash.Process.Pid, syscall.SIGKILL) // what an unfinished run has left
	out := stdout.String()
	if err != nil {
		t.Errorf("the last command: %v", err)
	}
	for _, want := range []string{"hello\nhello without unetd\n", " leased  tcp:10.77.0.1:7000\n", " deliver_socket ", "status 0\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("stdout has no %q", want)
		}
	}
	if log, err := os.ReadFile(filepath.Join(dir, "unet-quickstart", "unetd.log")); err == nil {
		t.Errorf("the folder is still there; unetd's log: %s", log)
	}
	if t.Failed() {
		t.Logf("stdout:\n%s\nstderr:\n%s", out, stderr.String())
	}
}

// quickstart is the two blocks of README.md that are to be pasted: the one that
// starts everything, and the one that removes it.
func quickstart(t *testing.T) (start, remove string) {
	t.Helper()
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(readme), "\n## Quickstart\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var blocks []string
	for {
		_, rest, ok := strings.Cut(section, "\n```bash\n")
		if !ok {
			break
		}
		block, after, _ := strings.Cut(rest, "\n```\n")
		blocks, section = append(blocks, block), after
	}
	if len(blocks) != 2 {
		t.Fatalf("README.md's quickstart has %d blocks of bash, want 2", len(blocks))
	}
	return blocks[0], blocks[1]
}

// moduleProxy makes a module proxy that has this module, as it is in this folder,
// and returns the environment in which go uses it. All other modules come from the
// cache of this build.
func moduleProxy(t *testing.T) []string {
	t.Helper()
	const module, version = "github.com/unet-go/unet", "v0.0.0-test"
	proxy := t.TempDir()
	folder := filepath.Join(proxy, filepath.FromSlash(module), "@v")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	gomod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	info := `{"Version":"` + version + `","Time":"2026-01-01T00:00:00Z"}`
	for name, content := range map[string][]byte{
		"list":            []byte(version + "\n"),
		version + ".info": []byte(info),
		version + ".mod":  gomod,
		version + ".zip":  moduleZip(t, "../..", module+"@"+version),
	} {
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cache, err := exec.Command("go", "env", "GOMODCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	fromCache := "file://" + filepath.Join(strings.TrimSpace(string(cache)), "cache", "download")
	return []string{
		"GOPROXY=file://" + proxy + "," + fromCache,
		"GOSUMDB=off", // this version is in no checksum database
		"GOMODCACHE=" + filepath.Join(t.TempDir(), "mod"),
		"GOFLAGS=-modcacherw -trimpath",
	}
}

// moduleZip is the Go files of a folder, and what they embed, as a module's zip.
func moduleZip(t *testing.T, root, prefix string) []byte {
	t.Helper()
	var buf bytes.Buffer
	z := zip.NewWriter(&buf)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path == root {
				return nil
			}
			_, err := os.Stat(filepath.Join(path, "go.mod")) // a module of its own
			if err == nil || strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" {
				return filepath.SkipDir
			}
			return nil
		}
		switch filepath.Ext(path) {
		case ".go", ".mod", ".sum", ".o":
		default:
			return nil
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		w, err := z.Create(prefix + "/" + filepath.ToSlash(name))
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		_, err = w.Write(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}
