// Package sysctl reads and writes the kernel's settings below /proc/sys (proc_sys(5)). Those of the network are of the network namespace of
// the calling thread. A name has slashes, such as net/ipv4/ip_forward, because the names of interfaces may contain dots.
package sysctl

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

const root = "/proc/sys/"

// Read returns a setting without the white space around it.
func Read(name string) (string, error) {
	text, err := os.ReadFile(root + name)
	if err != nil {
		return "", fmt.Errorf("read sysctl: %w", err)
	}
	return string(bytes.TrimSpace(text)), nil
}

// ReadInt returns a setting that is an integer.
func ReadInt(name string) (int, error) {
	text, err := Read(name)
	if err != nil {
		return 0, err
	}
	value, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("read sysctl %s: %w", name, err)
	}
	return value, nil
}

// Ensure writes a setting that has another value, and returns that; "" if nothing was written.
func Ensure(name, value string) (old string, err error) {
	if old, err = Read(name); err != nil || old == value {
		return "", err
	}
	if err := write(name, value); err != nil {
		return "", err
	}
	return old, nil
}

func write(name, value string) error {
	if err := os.WriteFile(root+name, []byte(value), 0); err != nil {
		return fmt.Errorf("set sysctl to %s: %w", value, err)
	}
	return nil
}
