package mux

import "errors"

// undoStack is what has been done so far and how to take it back.
type undoStack []func() error

func (u *undoStack) push(f func() error) { *u = append(*u, f) }

// run takes everything back, last first, and goes on after failures.
func (u *undoStack) run() error {
	var err error
	for i := len(*u) - 1; i >= 0; i-- {
		err = errors.Join(err, (*u)[i]())
	}
	*u = nil
	return err
}
