package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The suite's processes ask load balancers and nodes themselves: they run on the lab's internet host, as a user's client does, and never
// ask for an address of the lab from the machine's own network. What they have there of the machine is the API server, on loopback.

// clientSpace returns the network namespace of the lab's internet host.
func (l lab) clientSpace() string { return "/run/packetwalk/" + l.name + "/netns/client" }

var serverAddress = regexp.MustCompile(`(?m)^\s*server: https://(127\.0\.0\.1:\d+)$`)

// relayAPI lets the internet host's loopback have the API server of the kubeconfig, until ctx ends.
func (l lab) relayAPI(ctx context.Context, kubeconfig string) error {
	config, err := os.ReadFile(kubeconfig)
	if err != nil {
		return err
	}
	m := serverAddress.FindSubmatch(config)
	if m == nil {
		return fmt.Errorf("%s names no server on loopback", kubeconfig)
	}
	address := string(m[1])
	listener, err := listenIn(l.clientSpace(), address)
	if err != nil {
		return fmt.Errorf("listen on %s of the internet host: %w", address, err)
	}
	context.AfterFunc(ctx, func() { _ = listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return // ctx has ended, or the specs will say that there is no API server
			}
			go relay(ctx, c, address)
		}
	}()
	return nil
}

// listenIn listens in a network namespace.
func listenIn(space, address string) (listener net.Listener, err error) {
	f, err := os.Open(space)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var wg sync.WaitGroup
	wg.Go(func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the namespace that it has
		if err = unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err == nil {
			listener, err = net.Listen("tcp", address)
		}
	})
	wg.Wait()
	return listener, err
}

// relay joins a connection with one of the machine's, until either ends.
func relay(ctx context.Context, c net.Conn, address string) {
	defer c.Close()
	dialer := net.Dialer{Timeout: 10 * time.Second}
	server, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return
	}
	defer server.Close()
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	done := make(chan struct{}, 2)
	for _, p := range [][2]net.Conn{{c, server}, {server, c}} {
		go func() {
			_, _ = io.Copy(p[0], p[1])
			done <- struct{}{}
		}()
	}
	<-done
}
