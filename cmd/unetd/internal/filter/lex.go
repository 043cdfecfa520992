package filter

import (
	"fmt"
	"strings"
)

// symbols are the words that are not made of letters and digits, longest first.
var symbols = []string{"&&", "||", "<<", ">>", "<=", ">=", "==", "!=", "(", ")", "[", "]", "!", "<", ">", "=", "+", "-", "*", "/", "%", "&", "|", "^", ":"}

// words splits a filter. Addresses, names and prefixes as 10.0.0.0/8 are one word; inside of brackets and
// comparisons - and / are operators if there is space around them or they follow a bracket or a number alone.
func words(text string) (list []string, err error) {
	depth := 0 // of brackets
	for text = strings.TrimLeft(text, " \t\n"); text != ""; text = strings.TrimLeft(text, " \t\n") {
		if n := wordLength(text, depth > 0); n > 0 {
			list, text = append(list, text[:n]), text[n:]
			continue
		}
		found := false
		for _, s := range symbols {
			if strings.HasPrefix(text, s) {
				list, text, found = append(list, s), text[len(s):], true
				switch s {
				case "[":
					depth++
				case "]":
					depth--
				}
				break
			}
		}
		if !found {
			return nil, fmt.Errorf("%q is not part of the language", text[:1])
		}
	}
	return list, nil
}

// wordLength is the length of the word at the beginning of text; 0: it begins with a symbol.
func wordLength(text string, inBrackets bool) int {
	n := 0
	for n < len(text) && isWord(text[n], n, inBrackets) {
		n++
	}
	// The - of a name (tcp-syn) or a range, and the / of a prefix, are in words. A word does not end with one.
	for n > 0 && (text[n-1] == '-' || text[n-1] == '/') {
		n--
	}
	if inBrackets { // tcp[12:2]
		if i := strings.IndexByte(text[:n], ':'); i >= 0 {
			n = i
		}
	}
	return n
}

func isWord(c byte, at int, inBrackets bool) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '\\':
		return true
	case c == ':':
		return !inBrackets
	case c == '/':
		return at > 0 && !inBrackets
	}
	return c == '-' && at > 0
}
