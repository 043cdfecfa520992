//go:build linux

package guest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// apt runs the package manager, with the machine's sources or with sources of its own.
type apt struct {
	dir     string // for its own sources and lists
	options []string
}

// newApt returns an apt for suites of Debian, such as "trixie". "" is the machine's own release;
// it cannot be together with others.
func newApt(dir string, suites []string) (*apt, error) {
	for _, name := range []string{"apt-get", "apt-cache", "dpkg-deb"} {
		if _, err := exec.LookPath(name); err != nil {
			return nil, fmt.Errorf("a guest is made of Debian's packages, by apt-get and dpkg-deb: %w", err)
		}
	}
	a := &apt{dir: dir, options: []string{"-o", "Debug::NoLocking=1"}}
	if slices.Contains(suites, "") {
		return a, nil
	}
	sources, err := otherSources(suites)
	if errors.Is(err, errNoLists) {
		if err := (&apt{}).update(); err != nil {
			return nil, err
		}
		sources, err = otherSources(suites)
	}
	if err != nil {
		return nil, err
	}
	for _, d := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	list := filepath.Join(dir, "sources.list")
	if has, _ := os.ReadFile(list); string(has) != sources {
		if err := os.WriteFile(list, []byte(sources), 0o644); err != nil {
			return nil, err
		}
	}
	for _, o := range []string{
		"Dir::State=" + dir, "Dir::State::Lists=" + dir + "/lists", "Dir::State::Status=/dev/null", "Dir::Cache=" + dir + "/cache",
		"Dir::Etc::SourceList=" + list, "Dir::Etc::SourceParts=/dev/null", "Dir::Etc::Preferences=/dev/null", "Dir::Etc::PreferencesParts=/dev/null",
		"APT::Update::Error-Mode=any", "Acquire::Languages=none", "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
	} {
		a.options = append(a.options, "-o", o)
	}
	return a, nil
}

var errNoLists = errors.New("apt has no lists of Debian's packages")

const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// otherSources is the lines of a sources.list: the machine's Debian archives, with other suites.
func otherSources(suites []string) (string, error) {
	out, err := (&apt{}).run("apt-get", "indextargets", "--format", "$(CREATED_BY) $(ORIGIN) $(CODENAME) $(RELEASE) $(REPO_URI)", "Created-By: Packages")
	if err != nil {
		return "", err
	}
	options := ""
	if _, err := os.Stat(keyring); err == nil {
		options = "[signed-by=" + keyring + "] "
	}
	var lines []string
	for target := range strings.Lines(out) {
		f := strings.Fields(target)
		// A release's main archive is the one whose suite has no suffix such as -security.
		if len(f) != 5 || f[1] != "Debian" || strings.Contains(f[2], "-") {
			continue
		}
		for _, suite := range suites {
			if line := "deb " + options + f[4] + " " + suite + " main\n"; !slices.Contains(lines, line) {
				lines = append(lines, line)
			}
		}
	}
	if lines == nil {
		return "", errNoLists
	}
	return strings.Join(lines, ""), nil
}

// run runs a program of the package manager. Its error is one line.
func (a *apt) run(name string, args ...string) (string, error) { return a.runIn("", name, args...) }

func (a *apt) runIn(dir, name string, args ...string) (string, error) {
	if strings.HasPrefix(name, "apt-") {
		args = append(slices.Clip(a.options), args...)
	}
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "LC_ALL=C")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		said := strings.Fields(stderr.String())
		err = fmt.Errorf("%s %s: %w: %s", name, strings.Join(args[len(args)-min(len(args), 4):], " "), err, strings.Join(said[:min(len(said), 40)], " "))
	}
	return string(out), err
}

// update fetches the lists of packages.
func (a *apt) update() error {
	_, err := a.run("apt-get", "update", "-qq")
	return err
}

// download fetches packages into a folder, and unpacks them into another.
func (a *apt) download(names []string, to string) error {
	debs, err := os.MkdirTemp(filepath.Dir(to), "debs-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(debs)
	if _, err := a.runIn(debs, "apt-get", append([]string{"download", "-qq"}, names...)...); err != nil {
		return err
	}
	files, err := filepath.Glob(debs + "/*.deb")
	if err != nil {
		return err
	}
	for _, f := range files {
		if _, err := a.run("dpkg-deb", "-x", f, to); err != nil {
			return err
		}
	}
	return nil
}

// closure returns the names of packages and of all that they depend on, and of their files
// with their versions.
func (a *apt) closure(packages []string) (names []string, versions string, err error) {
	// With an empty list of installed packages, all are named that anything depends on.
	out, err := a.run("apt-get", append([]string{"install", "--print-uris", "-qq", "--no-install-recommends", "-o", "Dir::State::Status=/dev/null"}, packages...)...)
	if err != nil {
		return nil, "", err
	}
	names, versions = files(out)
	return names, versions, nil
}

// files reads the output of --print-uris.
func files(out string) (names []string, versions string) {
	for line := range strings.Lines(out) { // 'URI' file size hash
		if f := strings.Fields(line); len(f) >= 3 {
			name, _, _ := strings.Cut(f[1], "_")
			names = append(names, name)
			versions += f[1] + "\n"
		}
	}
	return names, versions
}

// kernelPackage depends on the packages of a suite's newest kernel.
const kernelPackage = "linux-image-amd64"

// kernelParts are the packages with a kernel's files: one in older releases, later several.
var kernelParts = regexp.MustCompile(`^linux-(image|binary|modules)-[0-9]`)

// kernel returns the packages of the newest kernel of a suite, and their versions.
func (a *apt) kernel(suite string) (names []string, versions string, err error) {
	start := kernelPackage
	if suite != "" {
		start += "/" + suite
	}
	for ask := []string{start}; len(ask) > 0; ask = ask[1:] {
		out, err := a.run("apt-cache", "depends", "-i", ask[0])
		if err != nil {
			return nil, "", err
		}
		for line := range strings.Lines(out) {
			_, name, ok := strings.Cut(line, "Depends: ")
			if name = strings.TrimSpace(name); ok && kernelParts.MatchString(name) && !slices.Contains(names, name) {
				names, ask = append(names, name), append(ask, name)
			}
		}
	}
	if names == nil {
		return nil, "", fmt.Errorf("package %s depends on no kernel", start)
	}
	out, err := a.run("apt-get", append([]string{"download", "--print-uris", "-qq"}, names...)...)
	_, versions = files(out)
	return names, versions, err
}
