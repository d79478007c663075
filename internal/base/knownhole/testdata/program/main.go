// Command program has a module beside its own.
package main

import "golang.org/x/mod/semver"

func main() { println(semver.Compare("v1.0.0", "v2.0.0")) }
