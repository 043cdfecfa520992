//go:build linux

package main

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/control"
)

// endpointID reads the number of an endpoint.
func endpointID(word string) (uint64, error) {
	id, err := strconv.ParseUint(word, 10, 64)
	if err != nil || id == 0 {
		return 0, fmt.Errorf("%q is not the number of an endpoint (see unetd list)", word)
	}
	return id, nil
}

// endpointWords are the endpoints of the unetd at socket, with a description each, for the shell.
func endpointWords(socket string) (words []string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	all, err := control.Operator{Socket: socket}.List(ctx)
	if err != nil {
		return nil
	}
	for _, e := range all {
		words = append(words, fmt.Sprintf("%d\tuid %d, pid %d", e.ID, e.UID, e.PID))
	}
	return words
}

// firstIsEndpoint completes the first argument of a command by the endpoints of the unetd at *socket.
func firstIsEndpoint(socket *string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return endpointWords(*socket), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeInterface completes the flag --interface of cmd by the interfaces of this host.
func completeInterface(cmd *cobra.Command) {
	err := cmd.RegisterFlagCompletionFunc("interface", func(*cobra.Command, []string, string) (words []string, _ cobra.ShellCompDirective) {
		all, err := net.Interfaces()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		for _, i := range all {
			words = append(words, i.Name)
		}
		return words, cobra.ShellCompDirectiveNoFileComp
	})
	if err != nil {
		panic(err) // the command has no such flag
	}
}
