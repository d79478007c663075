// Inside is the program of a test's image: it tells of the container that it runs in, and waits for a signal where an argument asks for
// that.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
)

func main() {
	groups, _ := os.Getgroups()
	dir, _ := os.Getwd()
	fmt.Println("account", os.Getuid(), os.Getgid(), groups, os.Getenv("HOME"), dir, os.Args)
	var names []string
	for _, name := range []string{"/", "/data"} {
		entries, _ := os.ReadDir(name)
		for _, e := range entries {
			names = append(names, filepath.Join(name, e.Name()))
		}
	}
	fmt.Println("files", names)
	for _, name := range []string{"/data/both", "/etc/hostname"} {
		text, err := os.ReadFile(name)
		fmt.Printf("%s %q %v\n", name, text, err)
	}
	if slices.Contains(os.Args, "wait") {
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM, syscall.SIGQUIT)
		fmt.Println("waits")
		fmt.Println("signal", <-c)
	}
}
