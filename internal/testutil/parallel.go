package testutil

import (
	"flag"
	"strconv"
)

// Parallel lets n tests of a package run at the same time, unless the command line says how many (-parallel). TestMain
// calls it.
func Parallel(n int) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if given {
		return
	}
	if err := flag.Set("test.parallel", strconv.Itoa(n)); err != nil {
		panic(err)
	}
}
