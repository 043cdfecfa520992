// Package ports has the local ports of a host: which it has claimed, who uses them, and when they
// are released.
//
// A host that shares its addresses with others may use only ports that unetd has granted it: tags of the
// mux (package endpoint). A claim is a request to unetd, so ports of outgoing sockets are claimed in
// blocks of 64, and a dial seldom has to wait.
//
//	Locals  the addresses of a host, which come and go. ForBind and ForDial choose among them as package
//	        net does. Listen gets the same port at several, and at those that come later.
//	Ports   the ports of one protocol at one address: Get by number or any free one, Choose for
//	        connections that may share one, Release.
//	Lease   a lease whose Unclaim does not wait: the close of a socket does not depend on unetd.
//
// Nothing here opens a socket or knows a stack. All types are safe for concurrent use.
package ports
