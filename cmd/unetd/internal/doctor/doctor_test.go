//go:build linux

package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unet-go/unet/mux"
)

// systemWith is an examination of a system with these files.
func systemWith(t *testing.T, files map[string]string) *examination {
	t.Helper()
	e := &examination{Config: Config{root: t.TempDir()}}
	for name, text := range files {
		path := filepath.Join(e.root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return e
}

// The findings of checks that read files of the system.
func TestChecksOfFiles(t *testing.T) {
	for _, c := range []struct {
		check   func(*examination)
		files   map[string]string
		verdict Verdict
		found   string
		remedy  string
	}{
		{kernel, map[string]string{"proc/sys/kernel/osrelease": "6.5.13-generic"}, Note, "Linux 6.5.13-generic", "Linux 6.6"},
		{kernel, map[string]string{"proc/sys/kernel/osrelease": "5.19.0"}, Note, "not tested", "Linux 6.6"},
		{jit, map[string]string{"proc/sys/net/core/bpf_jit_enable": "0"}, Problem, "interpreted", "sysctl -w net.core.bpf_jit_enable=1"},
		{jit, map[string]string{"proc/sys/net/core/bpf_jit_enable": "1"}, OK, "on", ""},
		{jit, nil, OK, "not shown", ""},
	} {
		e := systemWith(t, c.files)
		c.check(e)
		if len(e.findings) == 0 || e.findings[0].Verdict != c.verdict || !strings.Contains(e.findings[0].Found, c.found) || !strings.Contains(e.findings[0].Remedy, c.remedy) || (c.remedy == "") != (e.findings[0].Remedy == "") {
			t.Errorf("%v: %+v, want %s %q %q", c.files, e.findings, c.verdict, c.found, c.remedy)
		}
	}
}

// The finding about the offloads of an interface.
func TestOffloads(t *testing.T) {
	for _, c := range []struct {
		in      mux.Inspection
		verdict Verdict
		found   string
	}{
		{mux.Inspection{Mode: mux.ModeNative}, OK, "none"},
		{mux.Inspection{Mode: mux.ModeNative, Hidden: "rx-vlan-hw-parse", Merging: "rx-lro"}, OK, "rx-vlan-hw-parse,rx-lro: unetd turns them off"},
		{mux.Inspection{Mode: mux.ModeTCX, Merging: "rx-lro"}, OK, "rx-lro: they stay on"},
		{mux.Inspection{Mode: mux.ModeTCX, Merging: "rx-gro-hw", Fixed: "rx-gro-hw"}, Note, "does not turn rx-gro-hw off"},
	} {
		e := &examination{}
		offloads(e, &c.in)
		if f := e.findings[0]; f.Verdict != c.verdict || !strings.Contains(f.Found, c.found) {
			t.Errorf("%+v: %+v", c.in, f)
		}
	}
}
