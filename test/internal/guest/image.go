//go:build linux

package guest

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// Spec is what an image consists of.
type Spec struct {
	Dir      string   // folder for the packages and the image; nothing else is in it
	Suite    string   // Debian's release of the packages; "": the machine's own
	Packages []string // without those that they depend on. qemu-system-x86 and xz-utils are added.
	Kernels  []string // releases whose newest kernel is wanted; none: only that of Suite

	Programs  []string          // paths in the packages of ELF files for the guest, without the first /; the libraries that they need come along. The name may have a pattern of path/filepath.
	Libraries []string          // names of shared libraries that programs open by themselves
	Files     []string          // other files of the packages
	Links     map[string]string // symbolic links in the guest, and where they lead
	Modules   []string          // of the kernel, in the order in which they are loaded; what they depend on comes along. What is no module is taken for a part of the kernel.

	Init     string   // Go package of process 1
	Commands []string // Go packages of more programs for the guest's /usr/bin. Open builds them each time.
	Tags     string   // for these builds
}

// Image is what a guest boots from.
type Image struct {
	spec Spec
	dir  string
	root string // the unpacked packages
}

const loader = "ld-linux-x86-64.so.2"

// libraries are the folders of shared libraries, in a root of unpacked packages.
var libraries = []string{"lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"}

// Open makes the image from packages, unless Dir has one of the versions that apt's lists have,
// and builds the Go programs.
func Open(s Spec) (*Image, error) {
	if runtime.GOARCH != "amd64" {
		return nil, fmt.Errorf("the guest's kernel is %s, but this machine is %s", kernelPackage, runtime.GOARCH)
	}
	if len(s.Kernels) == 0 {
		s.Kernels = []string{s.Suite}
	}
	s.Packages = append([]string{"qemu-system-x86", "xz-utils"}, s.Packages...)
	dir := filepath.Join(s.Dir, "image")
	im := &Image{s, dir, filepath.Join(dir, "root")}
	a, err := newApt(filepath.Join(s.Dir, "apt"), append(slices.Clone(s.Kernels), s.Suite))
	if err != nil {
		return nil, err
	}
	if err = im.openFrom(a); err != nil { // the lists may be missing, or old
		if updateErr := a.update(); updateErr != nil {
			return nil, errors.Join(err, updateErr)
		}
		err = im.openFrom(a)
	}
	if err != nil {
		return nil, err
	}
	return im, im.buildCommands()
}

// openFrom makes the image by the lists that apt has.
func (im *Image) openFrom(a *apt) error {
	names, versions, err := a.closure(im.spec.Packages)
	if err != nil {
		return err
	}
	kernels := make([][]string, len(im.spec.Kernels))
	for i, suite := range im.spec.Kernels {
		var v string
		if kernels[i], v, err = a.kernel(suite); err != nil {
			return err
		}
		versions += v
	}
	versions += fmt.Sprint(im.spec.Programs, im.spec.Libraries, im.spec.Files, im.spec.Links, im.spec.Modules)
	stamp := filepath.Join(im.dir, "versions")
	if has, _ := os.ReadFile(stamp); string(has) == versions {
		return nil
	}
	if err := os.RemoveAll(im.dir); err != nil {
		return err
	}
	if err := os.MkdirAll(im.root, 0o755); err != nil {
		return err
	}
	if err := a.download(names, im.root); err != nil {
		return err
	}
	if err := writeArchive(im.programsFile(), im.addPrograms); err != nil {
		return err
	}
	for i := range kernels {
		if err := im.buildKernel(a, i, kernels[i]); err != nil {
			return err
		}
	}
	for _, rest := range []string{"usr/share/locale", "usr/share/doc", "usr/share/man"} {
		if err := os.RemoveAll(filepath.Join(im.root, rest)); err != nil {
			return err
		}
	}
	return os.WriteFile(stamp, []byte(versions), 0o644)
}

// The parts of an initial RAM disk.
func (im *Image) programsFile() string { return filepath.Join(im.dir, "programs.cpio") }
func (im *Image) modulesFile(i int) string {
	return filepath.Join(im.dir, fmt.Sprintf("modules%d.cpio", i))
}
func (im *Image) kernelFile(i int) string { return filepath.Join(im.dir, fmt.Sprintf("vmlinuz%d", i)) }
func (im *Image) commandsFile() string    { return filepath.Join(im.dir, "commands.cpio") }

// addPrograms adds all that comes from packages but the kernel.
func (im *Image) addPrograms(a *archive) error {
	for _, dir := range []string{"proc", "sys", "dev", "tmp", "run", "etc", "usr/lib/x86_64-linux-gnu", "usr/lib64"} {
		a.dir(dir)
	}
	a.link("lib", "usr/lib")
	a.link("lib64", "usr/lib64")
	a.link("usr/lib64/"+loader, "../lib/x86_64-linux-gnu/"+loader)
	for _, f := range im.spec.Files {
		a.copy(filepath.Join(im.root, f), f)
	}
	for _, pattern := range im.spec.Programs {
		found, err := filepath.Glob(filepath.Join(im.root, pattern))
		if err != nil || len(found) != 1 {
			return fmt.Errorf("%d files %s in the packages: %w", len(found), pattern, err)
		}
		path, err := filepath.Rel(im.root, found[0])
		if err != nil {
			return err
		}
		im.addProgram(a, path)
	}
	for _, name := range im.spec.Libraries {
		im.addLibrary(a, name)
	}
	for path, to := range im.spec.Links {
		a.link(path, to)
	}
	return nil
}

// addProgram adds an ELF file of the root, and the libraries that it needs.
func (im *Image) addProgram(a *archive, path string) {
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
func (im *Image) addLibrary(a *archive, name string) {
	i := slices.IndexFunc(libraries, func(dir string) bool { _, err := os.Stat(filepath.Join(im.root, dir, name)); return err == nil })
	if i >= 0 {
		im.addProgram(a, libraries[i]+"/"+name)
	} else if a.err == nil {
		a.err = fmt.Errorf("library %s is in none of the packages", name)
	}
}

// buildKernel downloads a kernel, and writes it and its modules.
func (im *Image) buildKernel(a *apt, i int, packages []string) error {
	root := filepath.Join(im.dir, "kernel")
	defer os.RemoveAll(root)
	if err := a.download(packages, root); err != nil {
		return err
	}
	kernel, modules := "", map[string]string{} // by name
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		if name, _, ok := strings.Cut(d.Name(), ".ko"); ok {
			modules[strings.ReplaceAll(name, "-", "_")] = path
		} else if strings.HasPrefix(name, "vmlinuz") {
			kernel = path
		}
		return nil
	})
	if err != nil {
		return err
	}
	if kernel == "" || len(modules) == 0 {
		return fmt.Errorf("packages %v: kernel %q, %d modules", packages, kernel, len(modules))
	}
	if err := os.Rename(kernel, im.kernelFile(i)); err != nil {
		return err
	}
	return writeArchive(im.modulesFile(i), func(a *archive) error { return im.addModules(a, modules) })
}

// addModules adds the modules that are wanted of those in files, and the file /modules with
// their order.
func (im *Image) addModules(a *archive, files map[string]string) error {
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
	for _, name := range im.spec.Modules {
		if err := add(name); err != nil {
			return err
		}
	}
	a.file("modules", 0o644, []byte(strings.Join(order, "\n")))
	return nil
}

// readModule reads a module, which may be compressed.
func (im *Image) readModule(file string) ([]byte, error) {
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
func (im *Image) command(path string, args ...string) *exec.Cmd {
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

// buildCommands builds process 1 and the other Go programs.
func (im *Image) buildCommands() error {
	bin, err := os.MkdirTemp(im.dir, "bin-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(bin)
	build := exec.Command("go", append([]string{"build", "-tags", im.spec.Tags, "-o", bin + "/", im.spec.Init}, im.spec.Commands...)...)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return writeArchive(im.commandsFile(), func(a *archive) error {
		a.copy(filepath.Join(bin, filepath.Base(im.spec.Init)), "init")
		for _, c := range im.spec.Commands {
			a.copy(filepath.Join(bin, filepath.Base(c)), "usr/bin/"+filepath.Base(c))
		}
		return nil
	})
}

// writeDisk writes the initial RAM disk of a kernel.
func (im *Image) writeDisk(kernel int, path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, part := range []string{im.programsFile(), im.modulesFile(kernel), im.commandsFile()} {
		b, err := os.ReadFile(part)
		if err != nil {
			return err
		}
		if _, err := f.Write(b); err != nil {
			return err
		}
	}
	return f.Close()
}
