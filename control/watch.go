package control

import (
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/unet-go/unet/endpoint"
)

// watchers are those who want to know what unetd tells. Each has its own store
// of what it was not told yet, so that the goroutine which reads the connection
// waits for none of them.
type watchers struct {
	done <-chan struct{} // closed when the lease has ended
	wake chan struct{}   // has an element if there may be something to tell

	mu   sync.Mutex
	list []*watcher
	down bool                // the last that unetd said of the link
	gone map[netip.Addr]bool // and of the endpoint's own addresses; false is not there
	runs bool                // the goroutine that tells
}

type watcher struct {
	f       func(endpoint.Notice)
	notices *notices
}

func (w *watchers) init(done <-chan struct{}) {
	w.done = done
	w.wake = make(chan struct{}, 1)
}

// add makes f a watcher until stop is called. If the link is down, or an address gone, f
// hears of it.
func (w *watchers) add(f func(endpoint.Notice)) (stop func()) {
	one := &watcher{f: f, notices: newNotices()}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list = append(w.list, one)
	if w.down {
		one.notices.add(endpoint.Notice{Kind: endpoint.NoticeLinkDown})
	}
	for a := range w.gone {
		one.notices.add(endpoint.Notice{Kind: endpoint.NoticeAddrGone, Addr: a})
	}
	w.nudge()
	if !w.runs {
		w.runs = true
		go w.run()
	}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.list = slices.DeleteFunc(slices.Clone(w.list), func(other *watcher) bool { return other == one })
	}
}

// tell gives a notice to all. A state of the link or of an address that is known
// already is none.
func (w *watchers) tell(n endpoint.Notice) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.news(n) {
		for _, one := range w.list {
			one.notices.add(n)
		}
	}
	w.nudge()
}

// news notes a state, and returns what those who watch do not know yet. w.mu is held.
func (w *watchers) news(n endpoint.Notice) []endpoint.Notice {
	switch n.Kind {
	case endpoint.NoticeLinkDown, endpoint.NoticeLinkUp:
		down := n.Kind == endpoint.NoticeLinkDown
		if down == w.down {
			return nil
		}
		w.down = down
	case endpoint.NoticeAddrGone:
		if w.gone[n.Addr] {
			return nil
		}
		if w.gone == nil {
			w.gone = make(map[netip.Addr]bool)
		}
		w.gone[n.Addr] = true
	case endpoint.NoticeAddrBack:
		if !n.Addr.IsValid() {
			list := noticesOf(endpoint.NoticeAddrBack, slices.SortedFunc(maps.Keys(w.gone), netip.Addr.Compare))
			clear(w.gone)
			return list
		}
		if !w.gone[n.Addr] {
			return nil
		}
		delete(w.gone, n.Addr)
	}
	return []endpoint.Notice{n}
}

func (w *watchers) nudge() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run calls the watchers until the lease ends.
func (w *watchers) run() {
	for {
		select {
		case <-w.done:
			return
		case <-w.wake:
		}
		w.mu.Lock()
		list := w.list
		w.mu.Unlock()
		for _, one := range list {
			for _, n := range one.notices.take() {
				if w.has(one) {
					one.f(n)
				}
			}
		}
	}
}

func (w *watchers) has(one *watcher) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Contains(w.list, one)
}

// event takes what unetd tells. The reader of a connection calls it.
func (l *Lease) event(e incoming) {
	for _, n := range e.notices() {
		l.watchers.tell(n)
	}
}
