//go:build linux

package show

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unet-go/unet/cmd/unetd/internal/policy"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/mux"
)

// The users and groups in the documentation.
var (
	docUsers  = map[string]uint32{"root": 0, "games": 5, "www-data": 33, "alice": 1001, "bob": 1002, "nobody": 65534}
	docGroups = map[string]uint32{"users": 100}
)

// docNames looks up docUsers and docGroups.
func docNames() policy.Names {
	return policy.Names{
		User: func(name string) (uint32, error) {
			if id, ok := docUsers[name]; ok {
				return id, nil
			}
			return 0, user.UnknownUserError(name)
		},
		Group: func(name string) (uint32, error) {
			if id, ok := docGroups[name]; ok {
				return id, nil
			}
			return 0, user.UnknownGroupError(name)
		},
	}
}

// doc is the text of a file of the documentation.
func doc(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// blocks are the fenced blocks with this information string.
func blocks(text, kind string) (list []string) {
	for _, part := range strings.Split(text, "\n```"+kind+"\n")[1:] {
		block, _, _ := strings.Cut(part, "```")
		list = append(list, block)
	}
	return list
}

// The example policy in the document permits what the table there lists.
func TestDocumentedExample(t *testing.T) {
	text, example := doc(t, "policy.md"), doc(t, "policy.example.yaml")
	if blocks(text, "yaml")[0] != example {
		t.Error("docs/policy.md does not have docs/policy.example.yaml as it is")
	}
	p, err := policy.Parse("policy.yaml", []byte(example), docNames())
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if len(cells) != 5 || cells[0] == "user" || strings.HasPrefix(cells[0], "---") {
			continue
		}
		rows++
		s := mux.Owner{UID: docUsers[cells[0]], GID: 4711}
		if cells[1] != "" {
			s.Groups = []uint32{docGroups[cells[1]]}
		}
		tag, err := endpoint.ParseTag(cells[3])
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		floor := uint16(1024)
		if s.UID == 0 {
			floor = 1
		}
		rule := p.Match(s, cells[2])
		gets := rule != nil && rule.Endpoints != 0 && rule.Permits(tag, floor)
		if want := strings.HasPrefix(cells[4], "yes"); want == strings.HasPrefix(cells[4], "no") || want != gets {
			t.Errorf("%s: by rule %+v: %v", strings.TrimSpace(line), rule, gets)
		}
	}
	if rows < 15 {
		t.Errorf("%d rows in the table", rows)
	}
}

// The output of check-config in the document is what it prints.
func TestDocumentedOutput(t *testing.T) {
	text := doc(t, "policy.md")
	files := map[string]string{"policy.yaml": blocks(text, "yaml")[0], "rates.yaml": blocks(text, "yaml")[1], "broken.yaml": blocks(text, "yaml")[2]}
	outputs := blocks(text, "console")
	if len(outputs) != 6 {
		t.Fatalf("%d blocks", len(outputs))
	}
	for _, block := range outputs {
		prompt, want, _ := strings.Cut(block, "\n")
		words := strings.Fields(prompt) // $ unetd check-config FILE [--as U [--interface I [TAG...]]]
		file := words[3]
		var got strings.Builder
		p, err := policy.Parse(file, []byte(files[file]), docNames())
		var mistakes policy.Errors
		if errors.As(err, &mistakes) {
			fmt.Fprintf(&got, "%v\nunetd: %s has %d mistakes\n", mistakes, file, len(mistakes))
		} else {
			err := Rules(&got, p)
			if len(words) > 5 {
				got.Reset()
				q := Question{Owner: mux.Owner{UID: docUsers[words[5]], GID: 4711}, User: words[5]}
				if len(words) > 7 {
					q.Interface, q.Tags = words[7], tags(t, words[8:]...)
				}
				err = q.Answer(&got, p)
			}
			if err != nil {
				fmt.Fprintln(&got, "unetd:", err)
			}
		}
		text := strings.ReplaceAll(got.String(), fmt.Sprintf("from %d on", policy.FirstUnprivileged()), "from 1024 on")
		if text != want {
			t.Errorf("%s:\n%s\nbut the documentation has\n%s", prompt, text, want)
		}
	}
}
