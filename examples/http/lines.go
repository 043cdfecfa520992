package main

// lines is endless data: lines of 16 bytes, each with the offset of its first byte in
// decimal, so that a part shows its offset.
type lines struct{}

const lineLen = 16

func (lines) ReadAt(b []byte, off int64) (int, error) {
	var line [lineLen]byte
	for n := 0; n < len(b); {
		at := off + int64(n)
		within := int(at % lineLen)
		number := at - int64(within)
		line[lineLen-1] = '\n'
		for i := lineLen - 2; i >= 0; i-- {
			line[i] = byte('0' + number%10)
			number /= 10
		}
		n += copy(b[n:], line[within:])
	}
	return len(b), nil
}
