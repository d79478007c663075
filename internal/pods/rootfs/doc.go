// Package rootfs makes roots: layers below a writable one, the change of a mount namespace's root to them, and /dev. A container's first
// process and a real node's do it, hundreds of times; it must not import anything large.
package rootfs
