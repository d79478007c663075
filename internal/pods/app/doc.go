// Package app has the built-in applications that a lab's images stand for, each behaving, where the network can see it, as the real one.
package app
