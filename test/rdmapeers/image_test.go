package rdmapeers_test

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// wanted are the packages that the guest and QEMU consist of, without those that they depend on.
var wanted = []string{"qemu-system-x86", "ibverbs-utils", "ibverbs-providers", "rdmacm-utils", "perftest", "xz-utils"}

// kernelPackage depends on the package of the distribution's current kernel.
const kernelPackage = "linux-image-amd64"

// programs are what the guest can run.
var programs = []string{
	"ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong", "rping",
	"ib_write_lat", "ib_read_lat", "ib_atomic_lat", "ib_send_bw", "ib_write_bw",
}

// modules are what the guest loads, with what they depend on. rdma_rxe of older kernels asks
// the crypto API for crc32.
var modules = []string{"virtio_pci", "virtio_net", "crc32_generic", "rdma_rxe", "ib_uverbs", "rdma_ucm"}

// libraries are the folders of shared libraries, in a root of unpacked packages.
var libraries = []string{"lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"}

const loader = "ld-linux-x86-64.so.2"

// image is what a guest boots from, in a folder that `make clean` removes.
type image struct {
	root   string // the unpacked packages
	kernel string
	initrd string // without process 1
}

// openImage makes the image from packages, unless dir has one of their current versions.
func openImage(t *testing.T, dir string) *image {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Fatalf("the guest's kernel is %s, but this machine is %s", kernelPackage, runtime.GOARCH)
	}
	for _, name := range []string{"apt-get", "apt-cache", "dpkg-deb"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Fatalf("the guest is made of Debian's packages, by apt-get and dpkg-deb: %v", err)
		}
	}
	im := &image{filepath.Join(dir, "root"), filepath.Join(dir, "vmlinuz"), filepath.Join(dir, "base.cpio")}
	names, versions, err := resolve()
	if err != nil && os.Geteuid() == 0 { // the lists may be missing, or old
		apt(dir, "apt-get", "update", "-qq")
		names, versions, err = resolve()
	}
	if err != nil {
		t.Fatalf("no guest: %v", err)
	}
	stamp := filepath.Join(dir, "versions")
	if has, _ := os.ReadFile(stamp); string(has) == versions {
		return im
	}
	os.RemoveAll(dir)
	debs := filepath.Join(dir, "debs")
	must(t, os.MkdirAll(debs, 0o755))
	if _, err := apt(debs, "apt-get", append([]string{"download", "-qq"}, names...)...); err != nil {
		t.Fatalf("no guest: %v", err)
	}
	files, err := filepath.Glob(debs + "/*.deb")
	must(t, err)
	for _, f := range files {
		if _, err := apt(debs, "dpkg-deb", "-x", f, im.root); err != nil {
			t.Fatalf("no guest: %v", err)
		}
	}
	if err := im.build(); err != nil {
		t.Fatalf("no guest: %v", err)
	}
	// What remains is QEMU.
	for _, rest := range []string{debs, im.root + "/boot", im.root + "/lib/modules", im.root + "/usr/lib/modules", im.root + "/usr/share/locale", im.root + "/usr/share/doc"} {
		must(t, os.RemoveAll(rest))
	}
	must(t, os.WriteFile(stamp, []byte(versions), 0o644))
	return im
}

// resolve returns the names of all packages, and of the files with their versions.
func resolve() (names []string, versions string, err error) {
	// With an empty list of installed packages, all are named that anything depends on.
	out, err := apt("", "apt-get", append([]string{"install", "--print-uris", "-qq", "--no-install-recommends",
		"-o", "Dir::State::Status=/dev/null", "-o", "Debug::NoLocking=1"}, wanted...)...)
	if err != nil {
		return nil, "", err
	}
	kernel, err := apt("", "apt-cache", "depends", "-i", kernelPackage)
	if err != nil {
		return nil, "", err
	}
	_, kernel, _ = strings.Cut(kernel, "Depends: ")
	kernel, _, ok := strings.Cut(kernel, "\n")
	if !ok {
		return nil, "", fmt.Errorf("package %s depends on no kernel", kernelPackage)
	}
	uri, err := apt("", "apt-get", "download", "--print-uris", "-qq", kernel)
	if err != nil {
		return nil, "", err
	}
	for line := range strings.Lines(out + uri) { // 'URI' file size hash
		if f := strings.Fields(line); len(f) >= 3 {
			name, _, _ := strings.Cut(f[1], "_")
			names = append(names, name)
			versions += f[1] + "\n"
		}
	}
	return names, versions, nil
}

// apt runs a program of the package manager in dir. Its error is one line.
func apt(dir, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "LC_ALL=C")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		said := strings.Fields(stderr.String())
		err = fmt.Errorf("%s %s: %w: %s", name, args[0], err, strings.Join(said[:min(len(said), 40)], " "))
	}
	return string(out), err
}

// build writes kernel and initrd.
func (im *image) build() error {
	kernels, err := filepath.Glob(im.root + "/boot/vmlinuz-*")
	if err != nil || len(kernels) != 1 {
		return fmt.Errorf("%d kernels in the packages: %w", len(kernels), err)
	}
	if err := os.Rename(kernels[0], im.kernel); err != nil {
		return err
	}
	f, err := os.Create(im.initrd)
	if err != nil {
		return err
	}
	defer f.Close()
	a := &archive{w: f, has: map[string]bool{}}
	for _, dir := range []string{"proc", "sys", "dev", "tmp", "run"} {
		a.dir(dir)
	}
	a.dir("usr/lib/x86_64-linux-gnu")
	a.dir("usr/lib64")
	a.link("lib", "usr/lib")
	a.link("lib64", "usr/lib64")
	a.link("usr/lib64/"+loader, "../lib/x86_64-linux-gnu/"+loader)
	a.copy(im.root+"/etc/libibverbs.d/rxe.driver", "etc/libibverbs.d/rxe.driver")
	providers, err := filepath.Glob(im.root + "/usr/lib/x86_64-linux-gnu/libibverbs/librxe-*.so")
	if err != nil || len(providers) != 1 {
		return fmt.Errorf("%d libraries librxe in the packages: %w", len(providers), err)
	}
	im.addProgram(a, "usr/lib/x86_64-linux-gnu/libibverbs/"+filepath.Base(providers[0]))
	for _, p := range programs {
		im.addProgram(a, "usr/bin/"+p)
	}
	im.addLibrary(a, "libgcc_s.so.1") // which pthread_exit loads when it is called
	if err := im.addModules(a); err != nil {
		return err
	}
	a.end()
	return errors.Join(a.err, f.Close())
}

// addProgram adds an ELF file of the root, and the libraries that it needs.
func (im *image) addProgram(a *archive, path string) {
	file := filepath.Join(im.root, path)
	if strings.HasPrefix(path, "lib/") {
		path = "usr/" + path
	}
	if a.has[path] || a.err != nil {
		return
	}
	a.copy(file, path)
	e, err := elf.Open(file)
	if err != nil {
		a.err = fmt.Errorf("%s: %w", file, err)
		return
	}
	defer e.Close()
	needed, err := e.ImportedLibraries()
	if err != nil {
		a.err = fmt.Errorf("%s: %w", file, err)
		return
	}
	for _, name := range append(needed, loader) {
		im.addLibrary(a, name)
	}
}

// addLibrary adds a shared library, and those that it needs.
func (im *image) addLibrary(a *archive, name string) {
	i := slices.IndexFunc(libraries, func(dir string) bool { _, err := os.Stat(filepath.Join(im.root, dir, name)); return err == nil })
	if i >= 0 {
		im.addProgram(a, libraries[i]+"/"+name)
	} else if a.err == nil {
		a.err = fmt.Errorf("library %s is in none of the packages", name)
	}
}

// addModules adds the modules, and the file /modules with their order.
func (im *image) addModules(a *archive) error {
	files := map[string]string{} // by the module's name
	for _, dir := range []string{"lib/modules", "usr/lib/modules"} {
		filepath.WalkDir(filepath.Join(im.root, dir), func(path string, d os.DirEntry, err error) error {
			if name, _, ok := strings.Cut(filepath.Base(path), ".ko"); ok && err == nil && !d.IsDir() {
				files[strings.ReplaceAll(name, "-", "_")] = path
			}
			return nil
		})
	}
	if len(files) == 0 {
		return errors.New("the kernel's package has no modules")
	}
	var order []string
	var add func(name string) error
	add = func(name string) error {
		file, to := files[name], "modules.d/"+name+".ko"
		if file == "" || a.has[to] { // what is no module is in the kernel, or it says so when a program fails
			return nil
		}
		b, err := im.readModule(file)
		if err != nil {
			return err
		}
		e, err := elf.NewFile(bytes.NewReader(b))
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		info, err := e.Section(".modinfo").Data()
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		for line := range strings.SplitSeq(string(info), "\x00") {
			if list, ok := strings.CutPrefix(line, "depends="); ok {
				for d := range strings.SplitSeq(list, ",") {
					if err := add(strings.ReplaceAll(d, "-", "_")); err != nil {
						return err
					}
				}
			}
		}
		a.file(to, 0o644, b)
		order = append(order, "/"+to)
		return nil
	}
	for _, name := range modules {
		if err := add(name); err != nil {
			return err
		}
	}
	a.file("modules", 0o644, []byte(strings.Join(order, "\n")))
	return nil
}

// readModule reads a module, which may be compressed.
func (im *image) readModule(file string) ([]byte, error) {
	if !strings.HasSuffix(file, ".xz") {
		return os.ReadFile(file)
	}
	out, err := im.command("usr/bin/xz", "-dc", file).Output()
	if err != nil {
		return nil, fmt.Errorf("xz -dc %s: %w", file, err)
	}
	return out, nil
}

// command is a program of the packages, run with their libraries instead of the machine's.
func (im *image) command(path string, args ...string) *exec.Cmd {
	var dirs []string
	ld := ""
	for _, dir := range libraries {
		dirs = append(dirs, filepath.Join(im.root, dir))
		if _, err := os.Stat(filepath.Join(im.root, dir, loader)); err == nil {
			ld = filepath.Join(im.root, dir, loader)
		}
	}
	return exec.Command(ld, append([]string{"--library-path", strings.Join(dirs, ":"), filepath.Join(im.root, path)}, args...)...)
}

// archive writes a cpio archive of the kind that the kernel takes as initial RAM disk
// (Documentation/driver-api/early-userspace/buffer-format.rst). Its first error stays.
type archive struct {
	w   io.Writer
	has map[string]bool
	err error
}

func (a *archive) entry(path string, mode int, data []byte) {
	if a.err != nil || a.has[path] {
		return
	}
	if dir := filepath.Dir(path); dir != "." {
		a.dir(dir)
	}
	a.has[path] = true
	head := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		len(a.has), mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(path)+1, 0, path)
	head += strings.Repeat("\x00", -len(head)&3)
	_, err1 := io.WriteString(a.w, head)
	_, err2 := a.w.Write(append(slices.Clip(data), make([]byte, -len(data)&3)...))
	a.err = errors.Join(err1, err2)
}

func (a *archive) dir(path string)                         { a.entry(path, 0o40755, nil) }
func (a *archive) link(path, to string)                    { a.entry(path, 0o120777, []byte(to)) }
func (a *archive) file(path string, mode int, data []byte) { a.entry(path, 0o100000|mode, data) }
func (a *archive) end()                                    { a.entry("TRAILER!!!", 0, nil) }

func (a *archive) copy(file, path string) {
	data, err := os.ReadFile(file)
	if err != nil && a.err == nil {
		a.err = err
	}
	a.file(path, 0o755, data)
}
