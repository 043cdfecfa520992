//go:build !linux

package mempath

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/unet-go/unet/endpoint"
)

var errSystem = fmt.Errorf("memory paths need Linux, this is %s: %w", runtime.GOOS, errors.ErrUnsupported)

func Make() (a, b *endpoint.Path, err error) { return nil, nil, errSystem }
func Open(p *endpoint.Path) (*Path, error)   { return nil, errors.Join(errSystem, p.Close()) }

func (p *Path) wake()        {}
func (p *Path) Bell() int    { return -1 }
func (p *Path) Drain()       {}
func (p *Path) Close() error { return errSystem }
