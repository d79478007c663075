// Package picture lays a network out for people to look at: boxes for its machines, nested as they are in reality, wires between them, and
// the way of a packet along the wires. It is pure: the same snapshot gives the same picture, to the byte.
package picture
