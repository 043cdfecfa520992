// Package ipcheck is a table of what RFCs require of a host that receives IP packets: crafted frames,
// and the answer that each must get. Tests run it against package stack over a link in memory, and over
// a real port beside the kernel, whose answers differ where the table says so. docs/ip.md has it in words.
//
//	Checks ── Check.Frames(Peers) ── frames for the host ── what it sends ── Answers.Add, List ── Check.Want
//
// Frames and answers are made and read byte by byte here, independently of package wire.
package ipcheck
