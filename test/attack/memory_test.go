package attack

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
)

// attempt is a system call that an attacker has tried.
type attempt struct {
	What  string
	Errno string // empty: it worked
}

// try notes a system call and its error.
func try(list *[]attempt, what string, err error) {
	a := attempt{What: what}
	var errno unix.Errno
	switch {
	case errors.As(err, &errno):
		a.Errno = unix.ErrnoName(errno)
	case errors.Is(err, os.ErrPermission):
		a.Errno = "EPERM"
	case err != nil:
		a.Errno = err.Error()
	}
	*list = append(*list, a)
}

// allRefused checks that no attempt has worked, except for those that may.
func (s *scene) allRefused(attempts []attempt, mayWork ...string) {
	s.Helper()
	refusals := map[string]int{}
	for _, a := range attempts {
		switch {
		case a.Errno != "":
			refusals[a.Errno]++
		case slices.Contains(mayWork, a.What):
			refusals["harmless"]++
		default:
			s.Errorf("%s: it worked", a.What)
			s.row.note("IT WORKED: %s", a.What)
		}
	}
	s.row.note("%d attempts: %s", len(attempts), countsText(refusals))
}

// tamper does to a segment what its descriptor might allow.
var tamper = teach("tamper", func(a *agent, arg gunArg) (list []attempt, err error) {
	g := a.guns[arg.Gun]
	fd, size := int(g.grant.Segment.Fd()), g.grant.Geometry.SegmentSize()
	try(&list, "ftruncate to 0", unix.Ftruncate(fd, 0))
	try(&list, "ftruncate to half", unix.Ftruncate(fd, size/2))
	try(&list, "ftruncate to twice its size", unix.Ftruncate(fd, 2*size))
	try(&list, "fallocate behind the end", unix.Fallocate(fd, 0, size, 1<<20))
	try(&list, "fallocate collapse", unix.Fallocate(fd, unix.FALLOC_FL_COLLAPSE_RANGE, 0, 1<<20))
	try(&list, "fallocate insert", unix.Fallocate(fd, unix.FALLOC_FL_INSERT_RANGE, 0, 1<<20))
	_, err = unix.Pwrite(fd, []byte("x"), size)
	try(&list, "write behind the end", err)
	for _, seal := range []int{unix.F_SEAL_SHRINK, unix.F_SEAL_GROW, unix.F_SEAL_WRITE, unix.F_SEAL_FUTURE_WRITE, unix.F_SEAL_SEAL, unix.F_SEAL_EXEC} {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seal)
		try(&list, fmt.Sprintf("add seal %#x", seal), err)
	}
	// A file that is opened again by its link has all that it had, and no more.
	again, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), os.O_RDWR|os.O_TRUNC, 0)
	try(&list, "open anew with O_TRUNC", err)
	if err == nil {
		again.Close()
	}
	try(&list, "execute", unix.Exec(fmt.Sprintf("/proc/self/fd/%d", fd), []string{"x"}, nil))
	// A mapping beyond the end is granted; what touches it is sent SIGBUS. The kernel
	// reads it like its owner would, and must say EFAULT.
	if mem, err := unix.Mmap(fd, size, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		r, w, pipeErr := os.Pipe()
		if pipeErr != nil {
			return list, pipeErr
		}
		_, err := unix.Write(int(w.Fd()), mem)
		try(&list, "read behind the end", err)
		r.Close()
		w.Close()
		unix.Munmap(mem)
	}
	return list, nil
})

// punch makes holes in a segment. The kernel permits that.
var punch = teach("punch", func(a *agent, arg gunArg) (list []attempt, err error) {
	g := a.guns[arg.Gun]
	fd, size := int(g.grant.Segment.Fd()), g.grant.Geometry.SegmentSize()
	try(&list, "a hole in the middle", unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, size/4, size/2))
	try(&list, "a hole as large as the segment", unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, size))
	try(&list, "zero range", unix.Fallocate(fd, unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, 0, size))
	try(&list, "MADV_REMOVE", unix.Madvise(g.mem, unix.MADV_REMOVE))
	try(&list, "MADV_DONTNEED", unix.Madvise(g.mem, unix.MADV_DONTNEED))
	try(&list, "mprotect to nothing", unix.Mprotect(g.mem, unix.PROT_NONE))
	try(&list, "mprotect back", unix.Mprotect(g.mem, unix.PROT_READ|unix.PROT_WRITE))
	return list, nil
})

func memoryCases() []attackCase {
	return []attackCase{
		{"resize and reseal the segment", "ftruncate, fallocate, write, seals, opening it anew, executing it, touching what is behind its end", func(s *scene) {
			t := s.target(endpoint.Request{})
			s.allRefused(tamper.do(s, t.actor, gunArg{t.Gun}))
			t.answers(s)
		}},
		{"holes in the segment", "punched by fallocate and madvise, while host B sends 2,000 datagrams into it and its owner sends from it", func(s *scene) {
			t := s.target(endpoint.Request{})
			worked := 0
			for range 20 {
				t.flood(100)
				for _, a := range punch.do(s, t.actor, gunArg{t.Gun}) {
					if a.Errno == "" {
						worked++
					}
				}
				v := s.allow() // what leaves is what the kernel finds in the pages that it holds: perhaps nothing
				frame := ether(linkB, linkA, typeIPv4, ipv4(hostA, hostB, protocolUDP, udp(t.port, discard, v.mark())))
				fire.do(s, t.actor, fireArg{t.Gun, []shot{{Frame: frame}}})
				drain.do(s, t.actor, gunArg{t.Gun})
			}
			s.row.note("%d of 140 calls worked: the segment is its owner's to spoil", worked)
		}},
	}
}
