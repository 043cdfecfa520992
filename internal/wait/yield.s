// The compiler accepts a function without a body, as in yield_unsafe.go, in a package with a file
// of assembly.
