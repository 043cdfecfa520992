// Package policy reads the file that says who may have which endpoints, and
// answers questions about it. [Authority] is the policy in force as a mux asks it.
//
// The file is a list of rules in YAML. The first rule that is for a user and an
// interface decides, and no other is looked at, as in PostgreSQL's pg_hba.conf:
// an operator reads from the top and stops at the first match. Whom no rule is
// for gets nothing, and what a rule does not give is not given. Fields, patterns
// and an example are in docs/policy.md.
//
// [Parse] is strict: a file that it accepts has no field, user or pattern that it
// did not understand. It goes on after a mistake, so that its [Errors] are all
// of them, each with its line and column. It does not decode into Go values but
// walks the nodes of the file, because only these have places.
//
// # Wildcards
//
// A claim may leave a port or a message tag to be chosen. [Rule.Permits]
// is about tags without such wildcards; [Rule.Choices] says what a tag with one
// may become.
package policy
