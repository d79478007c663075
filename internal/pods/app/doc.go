// Package app has the built-in applications that a lab's images stand for, each behaving, where the network can see it, as the real one.
//
// It must not import anything of Kubernetes, nor net/http and what else makes a process large: hundreds of them run at once.
package app
