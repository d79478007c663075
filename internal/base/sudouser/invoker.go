// Package sudouser knows who called us: behind sudo, the user who typed it. What is theirs, such as programs that they would run and files
// of their home, is run and read as them, never as root.
package sudouser

import (
	"cmp"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// A User is who called us.
type User struct {
	Credential *syscall.Credential // nil for who we are
	Name, Home string              // "" for who we are
}

// Get returns the user who called sudo (sudo(8), SUDO_UID and SUDO_GID), or who we are.
func Get() (User, error) {
	id := os.Getenv("SUDO_UID")
	if id == "" || os.Geteuid() != 0 {
		return User{}, nil
	}
	uid, err := strconv.ParseUint(id, 10, 32)
	if err != nil {
		return User{}, fmt.Errorf("SUDO_UID: %w", err)
	}
	u, err := user.LookupId(id)
	if err != nil {
		return User{}, fmt.Errorf("who called sudo: %w", err)
	}
	gid, err := strconv.ParseUint(cmp.Or(os.Getenv("SUDO_GID"), u.Gid), 10, 32)
	if err != nil {
		return User{}, fmt.Errorf("SUDO_GID: %w", err)
	}
	as := User{&syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, u.Username, u.HomeDir}
	groups, err := u.GroupIds()
	if err != nil {
		return User{}, fmt.Errorf("groups of who called sudo: %w", err)
	}
	for _, g := range groups {
		if n, err := strconv.ParseUint(g, 10, 32); err == nil {
			as.Credential.Groups = append(as.Credential.Groups, uint32(n))
		}
	}
	return as, nil
}

// Environment returns this process's environment. For another user it leaves out this one's directories, and has that user's home and
// names.
func (u User) Environment() []string {
	env := os.Environ()
	if u.Credential == nil {
		return env
	}
	env = slices.DeleteFunc(env, func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return strings.HasPrefix(name, "XDG_") || strings.HasPrefix(name, "SUDO_") || strings.HasPrefix(name, "DOCKER_") ||
			slices.Contains([]string{"GOPATH", "GOCACHE", "GOMODCACHE"}, name)
	})
	return append(env, "HOME="+u.Home, "USER="+u.Name, "LOGNAME="+u.Name)
}

// CacheDir returns the cache directory of who we are: behind sudo root's, also where sudo kept the environment of the user who called it.
func CacheDir() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the user's cache: %w; set HOME or XDG_CACHE_HOME", err)
	}
	caller, err := Get()
	if err != nil {
		return "", err
	}
	if caller.Credential == nil || caller.Credential.Uid == 0 || !isBelow(caller.Home, cache) {
		return cache, nil
	}
	self, err := user.LookupId(strconv.Itoa(os.Geteuid()))
	if err != nil {
		return "", fmt.Errorf("find root's home directory: %w", err)
	}
	return filepath.Join(self.HomeDir, ".cache"), nil
}

// isBelow reports whether a path is a directory or below it.
func isBelow(dir, path string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(rel)
}

// InHome returns a path of the user's home.
func (u User) InHome(name string) string {
	return filepath.Join(cmp.Or(u.Home, os.Getenv("HOME")), name)
}
