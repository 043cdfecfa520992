package tcp

// Events are what has happened to a connection since its owner was last told.
type Events uint8

const (
	Readable    Events = 1 << iota // text, its end, or an error; only after a Read that found nothing, or a Post
	Writable                       // there is room again; only after a Write that found too little
	Connected                      // the connection is established
	Returned                       // memory that was lent is the application's again
	Drained                        // all that was written, and the FIN after it, has been acknowledged: what SO_LINGER waits for
	PathChanged                    // the connection has learnt what PathMTU says
	Finished                       // the engine is done with the connection: CLOSED or TIME-WAIT
)

// notify queues c for NextEvent. A connection that nobody has accepted has
// nobody to tell.
func (c *Conn) notify(e Events) {
	if c.listener != nil {
		return
	}
	c.events |= e
	if c.onEvents {
		return
	}
	t := c.table
	c.onEvents = true
	if t.lastEvent == nil {
		t.firstEvent = c
	} else {
		t.lastEvent.eventNext = c
	}
	t.lastEvent = c
}

// NextEvent takes the next connection that something has happened to off the
// list. c is nil if there is none. It is to be called after each method that is
// told the time, until it is empty.
func (t *Table) NextEvent() (c *Conn, e Events) {
	c = t.firstEvent
	if c == nil {
		return nil, 0
	}
	if t.firstEvent = c.eventNext; t.firstEvent == nil {
		t.lastEvent = nil
	}
	e = c.events
	c.eventNext, c.onEvents, c.events = nil, false, 0
	return c, e
}

// NextListener takes the next listener with a connection to accept off the
// list, or returns nil.
func (t *Table) NextListener() *Listener {
	l := t.notified
	if l != nil {
		t.notified = l.notifyNext
		l.notifyNext, l.onNotified = nil, false
	}
	return l
}

// NextReady is the connection that has waited longest with something to send;
// nil if there is none. It stays on the list until [Conn.Emit] has nothing more
// to write.
func (t *Table) NextReady() *Conn { return t.firstReady }

func (t *Table) pushReady(c *Conn) {
	if c.onReady || c.held {
		return
	}
	c.onReady = true
	if c.readyPrev = t.lastReady; c.readyPrev == nil {
		t.firstReady = c
	} else {
		c.readyPrev.readyNext = c
	}
	t.lastReady = c
}

func (t *Table) dropReady(c *Conn) {
	if !c.onReady {
		return
	}
	c.onReady = false
	if c.readyPrev == nil {
		t.firstReady = c.readyNext
	} else {
		c.readyPrev.readyNext = c.readyNext
	}
	if c.readyNext == nil {
		t.lastReady = c.readyPrev
	} else {
		c.readyNext.readyPrev = c.readyPrev
	}
	c.readyNext, c.readyPrev = nil, nil
}

// Hold keeps c off the list of NextReady, whatever it has to send, until Resume:
// the driver does not know where to send it, or waits for what could go with it.
func (c *Conn) Hold() {
	c.held = true
	c.table.dropReady(c)
}

// Resume ends what Hold has begun.
func (c *Conn) Resume() {
	c.held = false
	if c.next.action != nothing {
		c.table.pushReady(c)
	}
}

// Postpone moves c to the end of the list of NextReady: it is the others' turn.
func (t *Table) Postpone(c *Conn) {
	if c.onReady && c.readyNext != nil {
		t.dropReady(c)
		t.pushReady(c)
	}
}
