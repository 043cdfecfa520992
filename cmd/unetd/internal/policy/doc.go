//go:build linux

// Package policy reads the file with the rules about endpoints, and answers questions about it.
// [Authority] is the policy in force as a mux uses it.
//
// The file is a list of rules in YAML. The first rule for a user and an interface decides, as in
// PostgreSQL's pg_hba.conf: an operator reads from the top and stops at the first match. A user
// without a rule gets nothing, and a rule gives only what it names. Fields, patterns and an
// example are in docs/policy.md.
//
// [Parse] is strict: it refuses unknown fields, users and patterns. It goes on after an error, so
// that [Errors] has all of them, each with its line and column. It walks the nodes of the file
// and does not decode into Go values, because only nodes have positions.
//
// # Wildcards
//
// A claim may leave a port or a message tag to be chosen. [Rule.Permits] is about tags without
// such wildcards; [Rule.Choices] returns the tags that a tag with a wildcard may become.
package policy
