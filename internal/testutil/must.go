package testutil

import (
	"errors"
	"fmt"
	"testing"
)

// Must ends the test if err is not nil. It shows all of an error that formats itself, such as the log of the
// BPF verifier.
func Must(t testing.TB, err error) {
	t.Helper()
	if err == nil {
		return
	}
	var long interface {
		error
		fmt.Formatter
	}
	if errors.As(err, &long) {
		t.Fatalf("%v: %+v", err, long)
	}
	t.Fatal(err)
}

// Value returns v, and panics if err is not nil.
func Value[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
