package tcp

import (
	"math"
	"time"
)

// Time is an instant: nanoseconds since an epoch that the driver of the engine
// chooses. The engine has no clock; every call that needs the time is told it.
// Time may stand still between calls but must not go back.
type Time int64

// Never is later than every other instant.
const Never Time = math.MaxInt64

func (t Time) add(d time.Duration) Time { return t + Time(d) }

// milliseconds is the clock of the timestamps option (RFC 7323, section 5.4
// wants a tick of 1 ms to 1 s).
func (t Time) milliseconds() uint32 { return uint32(int64(t) / int64(time.Millisecond)) }
