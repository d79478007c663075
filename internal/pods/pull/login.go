package pull

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"

	"packetwalk.dev/internal/base/limitio"
	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/base/sudouser"
)

// logins are those of the user who called us, as docker login and podman login leave them: in their files, or with a credential helper
// that the files name. Both are read and run as that user.
type logins struct{}

const (
	maxLogins  = 1 << 20 // bytes of a file
	helperTime = 20 * time.Second
)

// loginFiles are looked for in the user's home, the first that has a login counts.
var loginFiles = []string{".docker/config.json", ".config/containers/auth.json"}

// loginFile is what is read of one (github.com/docker/cli, cli/config/configfile).
type loginFile struct {
	Auths       map[string]authn.AuthConfig `json:"auths"`
	CredsStore  string                      `json:"credsStore"`
	CredHelpers map[string]string           `json:"credHelpers"`
}

// of returns the login for a registry, [authn.Anonymous] where there is none. The error is why one that is configured cannot be had.
func (l *logins) of(ctx context.Context, host string) (authn.Authenticator, error) {
	user, err := sudouser.Get()
	if err != nil {
		return authn.Anonymous, err
	}
	for _, file := range loginFiles {
		text, err := readAs(ctx, user, user.InHome(file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var f loginFile
		if err == nil {
			err = json.Unmarshal(text, &f)
		}
		if err != nil {
			return authn.Anonymous, fmt.Errorf("%s cannot be read: %w", user.InHome(file), withoutContent(err))
		}
		found, err := f.find(ctx, user, keys(host))
		if err != nil || found != nil {
			return orAnonymous(found), err
		}
	}
	return authn.Anonymous, nil
}

// withoutContent removes the file's content from an error.
func withoutContent(err error) error {
	var failed *program.Error
	if errors.As(err, &failed) {
		return err
	}
	return errors.New("it is no file of logins")
}

func orAnonymous(c *authn.AuthConfig) authn.Authenticator {
	if c == nil || *c == (authn.AuthConfig{}) {
		return authn.Anonymous
	}
	return authn.FromConfig(*c)
}

// keys returns the names that a registry has in such files.
func keys(host string) []string {
	if host == name.DefaultRegistry {
		return []string{authn.DefaultAuthKey, "index.docker.io", "docker.io", "registry-1.docker.io"}
	}
	return []string{host, "https://" + host, "http://" + host, "https://" + host + "/v1/", "https://" + host + "/v2/"}
}

func (f *loginFile) find(ctx context.Context, user sudouser.User, keys []string) (*authn.AuthConfig, error) {
	for _, k := range keys {
		if helper := f.CredHelpers[k]; helper != "" {
			return ask(ctx, user, helper, k)
		}
	}
	if f.CredsStore != "" {
		if c, err := ask(ctx, user, f.CredsStore, keys[0]); err != nil || c != nil {
			return c, err
		}
	}
	for _, k := range keys {
		if c, ok := f.Auths[k]; ok && c != (authn.AuthConfig{}) {
			return &c, nil
		}
	}
	return nil, nil
}

var helperName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// ask asks a credential helper (github.com/docker/docker-credential-helpers, README, "Usage"), nil for no login.
func ask(ctx context.Context, user sudouser.User, helper, key string) (*authn.AuthConfig, error) {
	if !helperName.MatchString(helper) {
		return nil, fmt.Errorf("%q is no credential helper", helper)
	}
	out, err := as(user, "docker-credential-"+helper, "get").withInput(key).Output(ctx)
	if strings.Contains(string(out), "credentials not found") {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var said struct{ Username, Secret string }
	if err := json.Unmarshal(out, &said); err != nil {
		return nil, fmt.Errorf("docker-credential-%s does not answer as credential helpers do", helper)
	}
	if said.Username == "<token>" {
		return &authn.AuthConfig{IdentityToken: said.Secret}, nil
	}
	return &authn.AuthConfig{Username: said.Username, Password: said.Secret}, nil
}

// readAs reads a file as a user: where they may not, or a link of theirs leads where they may not, neither do we.
func readAs(ctx context.Context, user sudouser.User, path string) ([]byte, error) {
	if user.Credential == nil {
		return limitio.ReadFile(path, maxLogins)
	}
	if _, err := os.Lstat(path); err != nil {
		return nil, err
	}
	return as(user, "head", "-c", strconv.Itoa(maxLogins), "--", path).Output(ctx)
}

type command struct{ program.Command }

// as returns a program that runs as the user, found in that user's PATH.
func as(user sudouser.User, name string, args ...string) command {
	env := user.Environment()
	if user.Credential != nil {
		env = slices.DeleteFunc(env, func(v string) bool { return strings.HasPrefix(v, "PATH=") })
		env = append(env, "PATH="+user.InHome("bin")+":"+user.InHome(".local/bin")+":/usr/local/bin:/usr/bin:/bin:/snap/bin")
	}
	return command{program.Command{Path: "/usr/bin/env", Args: append([]string{name}, args...), Env: env, Dir: "/", As: user.Credential,
		Limit: helperTime}}
}

func (c command) withInput(text string) command {
	c.Stdin = []byte(text)
	return c
}
