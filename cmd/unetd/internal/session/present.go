//go:build linux

package session

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/protocol"
)

// maxPresented is the number of tags that go into one answer to present. The longest
// tags, IPv6 blocks of 58 characters, then fill half a record.
const maxPresented = 512

// present leases the endpoint whose socket the application sent, and answers
// with its tags. paths: the application reads the events of memory paths. Every failure ends the session. It takes fds over.
func (s *session) present(id uint64, fds []int, paths bool) {
	var info endpoint.Info
	var lease endpoint.Lease
	files, err := s.sent(fds)
	defer s.dispose(files)
	if err == nil {
		var connections *os.File
		if len(files) > 1 {
			connections = files[1]
		}
		err = s.inTurn(s.quotas.work, func() (err error) {
			info, lease, err = s.provider.Present(s.ctx, s.peer, files[0], connections)
			return err
		})
	}
	if err != nil {
		answer := protocol.NewError(err)
		s.record("endpoint not presented", "code", answer.Code, "error", answer.Message)
		s.finish(protocol.Answer{ID: id, Error: answer}, errOpenFailed)
		return
	}
	s.hold(lease, info.ID, true, paths) // also if the answer cannot be sent
	s.log.Debug("lease presented", "endpoint", info.ID, "attach", info.Attach, "tags", len(info.Tags))
	for tags := info.Tags; ; tags = tags[maxPresented:] {
		part := protocol.Presented{ID: info.ID, Tags: tags, More: len(tags) > maxPresented}
		if part.More {
			part.Tags = tags[:maxPresented]
			s.answer(protocol.Answer{ID: id, Lease: &part}, nil)
			continue
		}
		s.finish(protocol.Answer{ID: id, Lease: &part}, nil)
		break
	}
	close(s.leased)
}

// sent makes files of descriptors from a peer, which can be of any kind, and takes the
// descriptors over. The caller passes the files to dispose, also if there is an error.
func (s *session) sent(fds []int) (files []*os.File, err error) {
	defer s.closeLater(fds)
	for _, fd := range fds {
		f, err := unpolledFile(fd)
		if err != nil {
			return files, err
		}
		files = append(files, f)
	}
	return files, nil
}

// dispose closes the files of sent, in goroutines of s.disposal: the connection counts in its
// quota until they have ended.
func (s *session) dispose(files []*os.File) {
	for _, f := range files {
		s.disposal.Go(func() { interruptibly(func() { _ = f.Close() }) })
	}
}

// unpolledFile makes a file of a copy of a peer's descriptor without polling it. os.NewFile of
// the descriptor would do that if it is non-blocking, which the peer can set at any moment:
// it adds it to the runtime's poller, and the kernel calls the file's poll operation. On a
// FUSE file system that does not answer, that would stop all network I/O of this process. So
// the file is made of an eventfd, which the copy then replaces (dup3).
func unpolledFile(fd int) (*os.File, error) {
	place, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, protocol.Busy("unetd has no free descriptor: %v", err)
	}
	file := os.NewFile(uintptr(place), "presented")
	if err := unix.Dup3(fd, place, unix.O_CLOEXEC); err != nil {
		file.Close()
		return nil, os.NewSyscallError("dup3", err)
	}
	return file, nil
}

// closeLater closes descriptors from a peer, in a goroutine of s.disposal.
func (s *session) closeLater(fds []int) {
	if len(fds) > 0 {
		s.disposal.Go(func() {
			for _, fd := range fds {
				interruptibly(func() { unix.Close(fd) })
			}
		})
	}
}
