package bpf

import "crypto/sha256"

// ObjectsHash is the SHA-256 of the compiled programs. Maps that were made for
// programs with another hash may have another layout or meaning.
func ObjectsHash() [32]byte { return sha256.Sum256(_MuxBytes) }
