//go:build linux

package pathlink

import (
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/wire"
)

// What is counted.
const (
	pathSent     = iota // frames put in paths
	pathReceived        // frames taken from paths
	pathStalled         // frames dropped because the path was full and its reader did not read
	pathNoFrame         // frames dropped for want of a free frame to copy them to
	pathDenied          // frames dropped whose source was not the writer's, or whose destination was not this endpoint's
	pathLies            // paths ended because the other end has written what it must not
	pathRefused         // paths that the mux has refused
	pathBad             // paths that were granted and could not be used
	numCounters
)

var counterNames = [numCounters]string{
	pathSent: "path_frames_sent", pathReceived: "path_frames_received", pathStalled: "path_stalled", pathNoFrame: "path_no_frame",
	pathDenied: "path_denied", pathLies: "path_lies", pathRefused: "path_refused", pathBad: "path_bad",
}

// Publish writes the counts of frames to a record, under the stack's lock.
func (l *Link) Publish(r *wire.EndpointRecord) {
	c := &l.counts
	r.PathSent, r.PathReceived, r.PathDropped = c[pathSent], c[pathReceived], c[pathStalled]+c[pathNoFrame]+c[pathDenied]
}

// Counters are the counts of the link, under the stack's lock.
func (l *Link) Counters() []stack.Counter {
	list := make([]stack.Counter, numCounters)
	for i, n := range l.counts {
		list[i] = stack.Counter{Name: counterNames[i], Value: n}
	}
	return list
}
