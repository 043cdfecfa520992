//go:build linux

package metrics

import (
	"errors"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/account"
	"github.com/unet-go/unet/mux"
)

// Source is what a scrape reads. Package uplink implements it.
type Source interface {
	// Muxes are the muxes, and the names of the interfaces that have none at the moment,
	// because they cannot be used.
	Muxes() (list []Mux, unusable []string)
	Leases() Leases
}

// Mux is a [mux.Mux].
type Mux interface {
	Counters() ([]endpoint.Counter, error)
	Report() (mux.Report, error)
}

// Leases are the requests for leases since unetd was started.
type Leases struct {
	Granted, Presented uint64
	Refused            map[string]uint64 // by the code of the error in the control protocol
	Draining           bool
}

// Process is what is not of a mux.
type Process struct {
	Version string
	// LogDropped is the number of lines of the log that could not be written, LogSuppressed
	// that of records left out because one user has caused too many.
	LogDropped, LogSuppressed func() uint64
	Faults                    func() uint64 // session.Server.Faults
}

// collector implements prometheus.Collector.
type collector struct {
	source Source
	also   Process
}

func newCollector(source Source, also Process) *collector { return &collector{source, also} }

// metric is a family of values of one name.
type metric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

var all []*prometheus.Desc // of families, in the order of their definition

func family(kind prometheus.ValueType, name, help string, labels ...string) metric {
	d := prometheus.NewDesc("unet_"+name, help, labels, nil)
	all = append(all, d)
	return metric{d, kind}
}

const (
	counter = prometheus.CounterValue
	gauge   = prometheus.GaugeValue
)

// The names are an interface of unetd: they do not change.
var (
	buildInfo     = family(gauge, "build_info", "Version of unetd and of Go; always 1.", "version", "goversion")
	logDropped    = family(counter, "log_dropped_lines_total", "Lines of the log that could not be written.")
	logSuppressed = family(counter, "log_suppressed_records_total", "Records about leases that were left out of the log, because one user had caused too many.")
	sessionFaults = family(counter, "session_faults_total", "Connections that a fault of unetd's own has ended, such as a panic; the log has its stack.")

	uplinkInfo      = family(gauge, "uplink_info", "The interface and how the mux is attached to it; always 1.", "interface", "mode")
	uplinkUp        = family(gauge, "uplink_up", "1 if the link of the interface is up; 0 also while the interface is gone.", "interface")
	uplinkMTU       = family(gauge, "uplink_mtu_bytes", "Largest IP packet that endpoints may send.", "interface")
	uplinkPackets   = family(counter, "uplink_packets_total", "Packets of the interface, by the kernel's count, also those that are not of endpoints.", "interface", "direction")
	uplinkBytes     = family(counter, "uplink_bytes_total", "Bytes of the interface, by the kernel's count.", "interface", "direction")
	uplinkDropped   = family(counter, "uplink_dropped_packets_total", "Packets that the interface has dropped or missed, by the kernel's count.", "interface", "direction")
	frames          = family(counter, "frames_total", "Frames by the counter that unetd counters shows, its stage (rx: received, tx: sent by endpoints, mux: sent by unetd for endpoints, deliver: at the end of a port, lost: by the kernel), and their outcome.", "interface", "counter", "stage", "outcome")
	unaccounted     = family(gauge, "unaccounted_frames", "Frames that have disappeared, or are on their way at the moment; negative: frames in ports that are not of the mux. If it stays other than 0, counters do not add up.", "interface")
	draining        = family(gauge, "draining", "1 if unetd grants no new endpoints (unetd drain).")
	leasesGranted   = family(counter, "leases_granted_total", "Endpoints opened since unetd was started.")
	leasesPresented = family(counter, "leases_presented_total", "Endpoints of an earlier unetd that their applications have presented to this one.")
	leasesRefused   = family(counter, "leases_refused_total", "Requests to open or present an endpoint that have failed, by the code of the error.", "reason")
	leasesEnded     = family(counter, "leases_ended_total", "Leases that have ended since unetd was started, by reason.", "interface", "reason")

	endpoints       = family(gauge, "endpoints", "Endpoints, by attachment and state (leased, or waiting to be presented after a restart of unetd).", "interface", "attach", "state")
	endpointInfo    = family(gauge, "endpoint_info", "An endpoint and its owner; always 1.", "interface", "endpoint", "uid", "attach", "device")
	endpointTags    = family(gauge, "endpoint_tags", "Tags of an endpoint; a block of ports is one.", "interface", "endpoint")
	endpointPaths   = family(gauge, "endpoint_memory_paths", "Memory paths that an endpoint has to other endpoints.", "interface", "endpoint")
	endpointSegment = family(gauge, "endpoint_segment_bytes", "Memory of an endpoint's segment.", "interface", "endpoint")
	endpointFrames  = family(counter, "endpoint_sent_frames_total", "Frames that have come out of an endpoint's port, also those that were then dropped.", "interface", "endpoint")
	endpointBytes   = family(counter, "endpoint_sent_bytes_total", "Bytes of these.", "interface", "endpoint")
	endpointLost    = family(counter, "endpoint_backlog_lost_frames_total", "Frames to an endpoint that a full backlog of a processor has dropped; a part of lost_deliver_backlog.", "interface", "endpoint")
	published       = family(counter, "endpoint_published_total", "What the process of an endpoint counts and publishes, which may be anything: received frames that the kernel dropped because the receive queue was full (receive_queue_full), no frame was free (free_queue_empty) or they were too long (receive_dropped); sends refused because the send queue was full (send_queue_full); allocations refused because no frame was free (no_buffers); malformed frames (malformed); frames by memory paths (path_sent, path_received), and those dropped there (path_dropped).", "interface", "endpoint", "counter")
	sockets         = family(gauge, "endpoint_sockets", "Sockets that the process of an endpoint publishes (udp, tcp_listening, tcp), of the first 255.", "interface", "endpoint", "kind")
	tcpSegments     = family(gauge, "endpoint_tcp_sent_segments", "Segments that the present TCP connections of an endpoint have sent; it falls when one ends.", "interface", "endpoint")
	tcpAgain        = family(gauge, "endpoint_tcp_retransmitted_segments", "Of these, segments sent again.", "interface", "endpoint")
	tcpAcked        = family(gauge, "endpoint_tcp_acked_bytes", "Bytes that the present TCP connections of an endpoint have sent and that were acknowledged.", "interface", "endpoint")
	tcpReceived     = family(gauge, "endpoint_tcp_received_bytes", "Bytes that the present TCP connections of an endpoint have received in order.", "interface", "endpoint")
	tcpRTT          = family(gauge, "endpoint_tcp_rtt_mean_seconds", "Mean of the smoothed round-trip times of the present TCP connections of an endpoint.", "interface", "endpoint")

	userEndpoints  = family(gauge, "user_endpoints", "Endpoints of a user, also closed ones whose socket or segment is still open.", "interface", "uid")
	userMemory     = family(gauge, "user_memory_bytes", "Memory of the segments and rings of a user.", "interface", "uid")
	userTags       = family(gauge, "user_tags", "Tags of a user; a block of ports counts as 64.", "interface", "uid")
	endpointsLimit = family(gauge, "endpoints_limit", "Endpoints that all users together may have; 0: no limit.", "interface")
	memoryLimit    = family(gauge, "memory_limit_bytes", "Memory of segments and rings that all users together may have; 0: no limit.", "interface")
	tagsLimit      = family(gauge, "tags_limit", "Tags that all users together may have; 0: no limit.", "interface")
)

func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range all {
		out <- d
	}
}

func (c *collector) Collect(out chan<- prometheus.Metric) {
	put := func(m metric, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(m.desc, m.kind, value, labels...)
	}
	put(buildInfo, 1, c.also.Version, runtime.Version())
	put(logDropped, float64(c.also.LogDropped()))
	put(logSuppressed, float64(c.also.LogSuppressed()))
	put(sessionFaults, float64(c.also.Faults()))
	leases := c.source.Leases()
	put(draining, number(leases.Draining))
	put(leasesGranted, float64(leases.Granted))
	put(leasesPresented, float64(leases.Presented))
	for _, reason := range slices.Sorted(maps.Keys(leases.Refused)) {
		put(leasesRefused, float64(leases.Refused[reason]), reason)
	}
	list, unusable := c.source.Muxes()
	for _, name := range unusable {
		put(uplinkUp, 0, name)
	}
	for _, m := range list {
		// ErrClosed: its interface has just gone.
		if err := collectMux(put, m); err != nil && !errors.Is(err, mux.ErrClosed) {
			out <- prometheus.NewInvalidMetric(uplinkInfo.desc, err)
		}
	}
}

func collectMux(put put, m Mux) error {
	report, err := m.Report()
	if err != nil {
		return err
	}
	list, err := m.Counters()
	if err != nil {
		return err
	}
	again, err := m.Counters()
	if err != nil {
		return err
	}
	on := report.Uplink.Interface
	put(unaccounted, float64(account.Proven(list, again)), on)
	collectUplink(put, on, &report)
	collectFrames(put, on, list, &report)
	collectEndpoints(put, on, &report)
	return nil
}

// put emits a value with its labels.
type put func(m metric, value float64, labels ...string)

func collectUplink(put put, on string, r *mux.Report) {
	put(uplinkInfo, 1, on, r.Uplink.Mode)
	put(uplinkUp, number(r.Uplink.Up), on)
	put(uplinkMTU, float64(r.MTU), on)
	for _, d := range []struct {
		direction               string
		packets, bytes, dropped uint64
	}{{"rx", r.Link.RxPackets, r.Link.RxBytes, r.Link.RxDropped}, {"tx", r.Link.TxPackets, r.Link.TxBytes, r.Link.TxDropped}} {
		put(uplinkPackets, float64(d.packets), on, d.direction)
		put(uplinkBytes, float64(d.bytes), on, d.direction)
		put(uplinkDropped, float64(d.dropped), on, d.direction)
	}
	for _, reason := range mux.EndReasons {
		put(leasesEnded, float64(r.Ended[reason]), on, reason)
	}
	for uid, u := range r.Users {
		id := strconv.FormatUint(uint64(uid), 10)
		put(userEndpoints, float64(u.Endpoints), on, id)
		put(userMemory, float64(u.Memory), on, id)
		put(userTags, float64(u.Tags), on, id)
	}
	put(endpointsLimit, float64(r.Limits.Endpoints), on)
	put(memoryLimit, float64(r.Limits.Memory), on)
	put(tagsLimit, float64(r.Limits.Tags), on)
}

// collectFrames emits the counters of the programs. Those of one endpoint have a name with its
// identifier (lost_deliver_backlog.7).
func collectFrames(put put, on string, list []endpoint.Counter, r *mux.Report) {
	lost := map[string]uint64{}
	for _, c := range list {
		if outcome, ok := account.OutcomeOf(c.Name); ok {
			stage, _, _ := strings.Cut(c.Name, "_")
			put(frames, float64(c.Value), on, c.Name, stage, string(outcome))
		} else if _, id, ok := strings.Cut(c.Name, "lost_deliver_backlog."); ok {
			lost[id] = c.Value
		}
	}
	for _, e := range r.Endpoints {
		id := strconv.FormatUint(e.Info.ID, 10)
		put(endpointLost, float64(lost[id]), on, id)
	}
}

func collectEndpoints(put put, on string, r *mux.Report) {
	type kind struct{ attach, state string }
	n := map[kind]int{}
	for _, attach := range []endpoint.Attachment{endpoint.AttachPort, endpoint.AttachQueue} {
		n[kind{attach.String(), "leased"}], n[kind{attach.String(), "waiting"}] = 0, 0
	}
	for _, e := range r.Endpoints {
		i, id := e.Info, strconv.FormatUint(e.Info.ID, 10)
		state := "waiting"
		if i.Leased {
			state = "leased"
		}
		n[kind{i.Attach.String(), state}]++
		put(endpointInfo, 1, on, id, strconv.FormatUint(uint64(i.UID), 10), i.Attach.String(), i.Device)
		put(endpointTags, float64(e.Tags), on, id)
		put(endpointPaths, float64(i.Paths), on, id)
		put(endpointSegment, float64(i.SegmentBytes), on, id)
		if i.Attach == endpoint.AttachPort {
			put(endpointFrames, float64(e.Port.RxPackets), on, id)
			put(endpointBytes, float64(e.Port.RxBytes), on, id)
		}
		if p := e.Published; p != nil {
			for _, c := range []struct {
				name  string
				value uint64
			}{{"receive_queue_full", p.RxRingFull}, {"free_queue_empty", p.FillRingEmpty}, {"receive_dropped", p.RxDropped}, {"send_queue_full", p.QueueFull}, {"no_buffers", p.NoBuffers}, {"malformed", p.Malformed},
				{"path_sent", p.PathSent}, {"path_received", p.PathReceived}, {"path_dropped", p.PathDropped}} {
				put(published, float64(c.value), on, id, c.name)
			}
			collectSockets(put, on, id, &e.Sockets)
		}
	}
	for k, count := range n {
		put(endpoints, float64(count), on, k.attach, k.state)
	}
}

func collectSockets(put put, on, id string, s *mux.SocketTotals) {
	put(sockets, float64(s.UDP), on, id, "udp")
	put(sockets, float64(s.Listening), on, id, "tcp_listening")
	put(sockets, float64(s.Connections), on, id, "tcp")
	put(tcpSegments, s.Segments, on, id)
	put(tcpAgain, s.Again, on, id)
	put(tcpAcked, s.BytesAcked, on, id)
	put(tcpReceived, s.BytesIn, on, id)
	if s.RTT > 0 {
		put(tcpRTT, s.RTT.Seconds(), on, id)
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
