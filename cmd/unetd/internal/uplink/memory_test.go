package uplink

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unet-go/unet/cmd/unetd/internal/policy"
)

func TestMemoryLimit(t *testing.T) {
	for _, c := range []struct {
		name, cgroup, mounts string
		files                map[string]string
		want                 int64
	}{
		{"version 2", "0::/system.slice/unetd.service\n", "30 23 0:26 / TOP rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
			map[string]string{"system.slice/unetd.service/memory.max": "268435456\n", "system.slice/memory.max": "max\n"}, 256 << 20},
		{"one above", "0::/system.slice/unetd.service\n", "30 23 0:26 / TOP rw - cgroup2 cgroup2 rw\n",
			map[string]string{"system.slice/unetd.service/memory.max": "268435456\n", "system.slice/memory.max": "1048576\n"}, 1 << 20},
		{"no limit", "0::/user.slice\n", "30 23 0:26 / TOP rw - cgroup2 cgroup2 rw\n", map[string]string{"user.slice/memory.max": "max\n"}, policy.Unlimited},
		{"the root", "0::/\n", "30 23 0:26 / TOP rw - cgroup2 cgroup2 rw\n", nil, policy.Unlimited},
		{"version 1", "5:cpu,memory:/a\n0::/b\n", "30 23 0:26 / /no/such rw - cgroup cgroup rw,pids\n31 23 0:27 / TOP rw shared:9 - cgroup cgroup rw,cpu,memory\n",
			map[string]string{"a/memory.limit_in_bytes": "65536\n", "memory.limit_in_bytes": "9223372036854771712\n"}, 64 << 10},
		{"not mounted", "5:memory:/a\n0::/b\n", "31 23 0:27 / /proc rw - proc proc rw\n", nil, policy.Unlimited},
	} {
		dir := t.TempDir()
		write := func(name, text string) {
			t.Helper()
			if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("proc/cgroup", c.cgroup)
		write("proc/mountinfo", strings.ReplaceAll(c.mounts, "TOP", dir+"/top"))
		for name, text := range c.files {
			write("top/"+name, text)
		}
		if got, err := memoryLimit(dir + "/proc"); got != c.want || err != nil {
			t.Errorf("%s: %d, %v; want %d", c.name, got, err, c.want)
		}
	}
}
