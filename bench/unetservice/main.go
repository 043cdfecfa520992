// Command unetservice is the server and the client of the services that unetbench services
// measures, on unet or on the kernel's sockets. It is a program of its own so that gRPC, NATS and
// QUIC are not in the memory of unetbench's processes. See unetservice --help.
package main

import "github.com/unet-go/unet/bench/internal/cli"

func main() { cli.Main(newCommand()) }
