// Package preflight tries the kernel features and programs that packetwalk needs. It uses each one in a network namespace that it makes and
// removes. It loads the kernel modules of features that do not work, and says what is missing, what needs it, and what the user can do.
//
// The table in features.go is the only list of features, programs and modules. docs/requirements.md is generated from it.
package preflight
