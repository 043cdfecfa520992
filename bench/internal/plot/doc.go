// Package plot draws what unetbench measured: one SVG that stands by itself, for
// the top of a README or a message to a colleague.
//
// Read takes the JSON lines of unetbench --json, one round of one combination a
// line, checks them, and keeps what is drawn: messages sent one at a time by
// processes that spin (go-udp blocks; it has no other way). Draw lays the picture
// out, from the top down: a key of what the names mean, round trips by message
// size, rates one way, and a caption that says under which conditions the figures
// hold.
//
// Round trips stand on a logarithmic axis, because what matters is by which factor
// two transports differ, and the slowest would press the others flat on a linear
// one. Port and queue have a field each with the same axis and the same kernel
// baselines in it, so that five lines share a field and not eight. Rates are bars
// and start at zero.
//
// The picture has to be read without colours, and on a page of any: it brings its
// white card along, each transport has a hue that stays apart for the colour-blind
// and a mark of its own shape, and names stand at the lines. Every mark and bar
// carries its figures as an SVG title, which browsers show under the pointer.
package plot
