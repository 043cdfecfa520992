package unet_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/unet-go/unet"

// layers lists what each package may import: own of this module, other of other modules. A package
// that is missing here is an error.
var layers = map[string]struct{ own, other []string }{
	".":                            {own: []string{"stack", "datapath", "endpoint", "control", "internal/endpointlink", "internal/hoststack", "internal/notices", "internal/pathlink", "internal/ports", "wire", "proto/udp", "proto/tcp"}},
	"internal/endpointlink":        {own: []string{"datapath", "queues", "stack"}},
	"internal/pathlink":            {own: []string{"endpoint", "internal/mempath", "internal/tagtable", "stack", "wire"}, other: []string{"golang.org/x/sys/unix"}},
	"internal/hoststack":           {own: []string{"endpoint", "stack"}},
	"internal/ports":               {own: []string{"endpoint", "proto/tcp"}},
	"wire":                         {},
	"queues":                       {},
	"internal/wait":                {own: []string{"endpoint"}},
	"internal/testutil":            {},
	"internal/frametest":           {other: []string{"github.com/google/gopacket"}},
	"internal/timerheap":           {},
	"segment":                      {},
	"internal/xsk":                 {own: []string{"queues", "segment"}, other: []string{"golang.org/x/sys/unix"}},
	"internal/mempath":             {own: []string{"endpoint", "internal/xsk"}, other: []string{"golang.org/x/sys/unix"}},
	"endpoint":                     {own: []string{"wire"}},
	"internal/tagtable":            {own: []string{"endpoint", "wire"}, other: []string{"golang.org/x/sys/unix"}},
	"datapath":                     {own: []string{"endpoint", "internal/pathlink", "queues", "segment", "stack", "internal/xsk", "internal/wait", "wire"}},
	"bpf":                          {other: []string{"github.com/cilium/ebpf"}},
	"internal/route":               {own: []string{"endpoint", "wire"}, other: []string{"github.com/vishvananda/netlink", "github.com/vishvananda/netns", "golang.org/x/sys/unix"}},
	"internal/nat":                 {own: []string{"endpoint"}, other: []string{"github.com/vishvananda/netlink", "golang.org/x/sys/unix"}},
	"internal/nat/nattest":         {own: []string{"internal/netlab"}, other: []string{"github.com/google/nftables", "github.com/vishvananda/netlink", "golang.org/x/sys/unix"}},
	"internal/ethtool":             {other: []string{"golang.org/x/sys/unix"}},
	"mux":                          {own: []string{"mux/internal", "bpf", "endpoint", "internal/ethtool", "internal/mempath", "internal/notices", "internal/share", "internal/tagtable", "internal/xsk", "internal/route", "internal/nat", "wire"}, other: []string{"github.com/cilium/ebpf", "github.com/vishvananda/netlink", "github.com/vishvananda/netns", "golang.org/x/sys/unix"}},
	"mux/internal/nic":             {own: []string{"internal/ethtool", "internal/route", "internal/xsk", "wire"}, other: []string{"github.com/vishvananda/netlink", "github.com/vishvananda/netns", "golang.org/x/sys/unix"}},
	"mux/internal/steer/steertest": {other: []string{"golang.org/x/sys/unix"}},
	"mux/internal/steer":           {own: []string{"endpoint", "internal/ethtool", "internal/route", "mux/internal/nic", "wire"}, other: []string{"github.com/vishvananda/netlink", "golang.org/x/sys/unix"}},
	"mux/internal/tables":          {own: []string{"bpf", "endpoint"}, other: []string{"github.com/cilium/ebpf", "golang.org/x/sys/unix"}},
	"mux/internal/attach":          {own: []string{"bpf", "endpoint", "internal/ethtool", "internal/route", "internal/xsk", "mux/internal/nic", "mux/internal/steer", "mux/internal/tables"}, other: []string{"github.com/cilium/ebpf", "github.com/vishvananda/netlink", "github.com/vishvananda/netns", "golang.org/x/sys/unix"}},
	"internal/account":             {own: []string{"endpoint"}},
	"internal/notices":             {own: []string{"endpoint"}},
	"internal/share":               {own: []string{"endpoint"}},
	"internal/protocol":            {own: []string{"endpoint"}, other: []string{"golang.org/x/sys/unix"}},
	"internal/protocoltest":        {own: []string{"internal/protocol"}, other: []string{"golang.org/x/sys/unix"}},
	"control":                      {own: []string{"endpoint", "internal/notices", "internal/protocol"}, other: []string{"golang.org/x/sys/unix"}},
	"proto/udp":                    {own: []string{"wire"}},
	"proto/rdma/cm":                {own: []string{"internal/timerheap", "wire"}},
	"proto/rdma":                   {own: []string{"internal/timerheap", "wire"}},
	"verbs":                        {own: []string{".", "internal/hoststack", "proto/rdma", "stack", "wire"}},
	"proto/frag":                   {own: []string{"wire"}},
	"proto/tcp/seq":                {},
	"proto/tcp":                    {own: []string{"internal/timerheap", "wire", "proto/tcp/seq"}},
	"stack":                        {own: []string{"endpoint", "wire", "proto", "internal/wait"}},
	"quicconn":                     {own: []string{"stack"}, other: []string{"golang.org/x/net/ipv4"}},
	"stack/memlink":                {own: []string{"stack", "wire"}},
	"unettest":                     {own: []string{".", "endpoint", "internal/hoststack", "internal/linksim", "internal/notices", "stack", "wire"}, other: []string{"golang.org/x/net/dns/dnsmessage"}},
	"internal/netlab":              {own: []string{"internal/ethtool", "wire"}, other: []string{"github.com/vishvananda/netlink", "github.com/vishvananda/netns", "golang.org/x/sys/unix"}},
	"internal/linksim":             {},
	"internal/dnstest":             {other: []string{"golang.org/x/net/dns/dnsmessage"}},
	"internal/ipcheck":             {},
	"internal/soak":                {},
	"internal/version":             {},
	"internal/netlab/impair":       {own: []string{"internal/netlab", "internal/linksim"}, other: []string{"golang.org/x/sys/unix"}},
	"cmd/unetd":                    {own: []string{"cmd/unetd/internal", "control", "endpoint", "internal/protocol", "internal/version", "internal/xsk", "mux"}, other: []string{"github.com/spf13/cobra"}},
	"cmd/unetd/internal":           {own: []string{"mux", "control", "internal/account", "internal/protocol", "internal/route", "internal/share", "endpoint", "internal/xsk", "cmd/unetd/internal"}, other: []string{"github.com/cilium/ebpf", "github.com/vishvananda/netlink", "github.com/vishvananda/netns", "golang.org/x/sys/unix", "go.yaml.in/yaml/v3", "github.com/prometheus/client_golang"}},
	"bench/unetbench":              {own: []string{"*"}, other: []string{"github.com/spf13/cobra"}},
	"bench/unetplot":               {own: []string{"bench/internal", "internal/version"}, other: []string{"github.com/spf13/cobra", "gonum.org/v1/plot"}},
	"bench/unetservice":            {own: []string{".", "bench/internal/cli", "bench/internal/load", "bench/internal/plan", "bench/internal/service", "internal/version"}, other: []string{"github.com/spf13/cobra"}},
	"bench/internal/service":       {own: []string{".", "quicconn", "bench/internal/load", "bench/internal/plan"}, other: []string{"google.golang.org/grpc", "google.golang.org/protobuf", "github.com/nats-io", "github.com/quic-go/quic-go"}},
	"bench/internal":               {own: []string{"*"}, other: []string{"golang.org/x/sys/unix", "github.com/cilium/ebpf", "github.com/spf13/cobra", "gvisor.dev/gvisor/pkg"}},
	"examples/echo":                {own: []string{".", "control", "datapath", "endpoint"}},
	"examples/http":                {own: []string{"."}},
	"examples/resp":                {own: []string{"."}},
	"examples/rkv":                 {own: []string{".", "endpoint", "verbs", "examples/rkv"}},
	"examples/rkv/kv":              {own: []string{"verbs"}},
	"examples/pingpong":            {own: []string{".", "verbs"}},
	"examples/internal/lab":        {own: []string{".", "endpoint", "internal/netlab", "internal/testutil", "mux", "verbs"}},
	"examples/rping":               {own: []string{".", "verbs"}},
	"examples/grpc":                {own: []string{"."}, other: []string{"google.golang.org/grpc"}},
	"examples/quic":                {own: []string{".", "quicconn"}, other: []string{"github.com/quic-go/quic-go"}},
	"examples/dns":                 {own: []string{"."}, other: []string{"golang.org/x/net/dns/dnsmessage"}},
	"examples/postgres":            {own: []string{"."}, other: []string{"github.com/jackc/pgx/v5"}},
	"examples/forward":             {own: []string{"."}},
	"examples/multicast":           {own: []string{"."}},
	"examples/demo":                {own: []string{".", "control", "datapath", "endpoint", "internal/netlab"}, other: []string{"github.com/vishvananda/netlink", "golang.org/x/sys/unix"}},
	"examples/upcall":              {own: []string{".", "control", "datapath", "endpoint"}},

	"cmd/unetd/internal/capture": {own: []string{"bpf", "mux", "wire"}, other: []string{"github.com/cilium/ebpf", "github.com/google/gopacket", "golang.org/x/sys/unix"}},
}

// layerOf is the longest entry of layers that pkg lies in; folders named
// internal inside a command share one entry.
func layerOf(pkg string) string {
	best := ""
	for name := range layers {
		if (pkg == name || name != "." && strings.HasSuffix(name, "internal") && strings.HasPrefix(pkg, name+"/")) && len(name) > len(best) {
			best = name
		}
	}
	return best
}

// TestImportDirections compares the imports of every non-test file with layers.
func TestImportDirections(t *testing.T) {
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && path != ".") {
			if err == nil {
				err = fs.SkipDir
			}
			return err
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		pkg := filepath.ToSlash(filepath.Dir(path))
		if pkg == "test" || strings.HasPrefix(pkg, "test/") {
			return nil
		}
		layer := layerOf(pkg)
		if layer == "" {
			t.Errorf("%s: package %s has no entry in layers", path, pkg)
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, imp := range file.Imports {
			checkImport(t, path, layer, imp)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func checkImport(t *testing.T, path, layer string, imp *ast.ImportSpec) {
	t.Helper()
	target, err := strconv.Unquote(imp.Path.Value)
	if err != nil {
		t.Fatal(err)
	}
	under := func(list []string) bool {
		return slices.ContainsFunc(list, func(p string) bool { return target == p || strings.HasPrefix(target, p+"/") })
	}
	switch own, isOwn := strings.CutPrefix(target, module); {
	case target == "unsafe":
		if !strings.HasSuffix(path, "_unsafe.go") {
			t.Errorf("%s imports unsafe: only files named *_unsafe.go may", path)
		}
	case isOwn:
		own = strings.TrimPrefix(own, "/")
		if own == "" {
			own = "."
		}
		allowed := slices.ContainsFunc(layers[layer].own, func(p string) bool {
			return p == "*" || own == p || strings.HasPrefix(own, p+"/")
		})
		if !allowed {
			t.Errorf("%s imports %s: package %s may not", path, own, layer)
		}
	case strings.Contains(strings.Split(target, "/")[0], "."):
		if !under(layers[layer].other) {
			t.Errorf("%s imports %s: package %s may not", path, target, layer)
		}
	}
}
