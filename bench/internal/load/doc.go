// Package load asks a service over many connections at once, and measures rate, latency,
// fairness and processor time. It does not know the service: a [Conn] asks it.
//
// unetservice runs it beside the client of the service. unetbench only reads the [Result],
// which is why neither the services nor their modules are imported here.
package load
