// Package mcpserver answers questions of assistants and editors by the Model Context Protocol, over standard input and output. It listens
// on no address. What the questions are about is its callers'.
package mcpserver
