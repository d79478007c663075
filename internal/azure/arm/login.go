package arm

import (
	"cmp"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"packetwalk.dev/internal/azure/vnet"
)

// Tenant is the directory that the lab's subscription belongs to.
const Tenant = "00000000-0000-0000-0000-000000000000"

// audience is Azure Resource Manager's name in tokens.
const audience = "https://management.azure.com/"

// systemAssigned is the client ID of the managed identity that a request names no other one of: that of Azure's cloud provider.
const systemAssigned = "cloud-provider"

// tokenLife is how long an access token is valid.
const tokenLife = 24 * time.Hour

// newToken returns an access token with the claims that Azure's clients look at ("Access token claims reference", learn.microsoft.com). The
// server's own secret signs it.
func (s *Server) newToken(r *http.Request, client string, now time.Time) (string, error) {
	return jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
		"aud": audience, "iss": origin(r) + "/" + Tenant + "/", "tid": Tenant, "ver": "1.0",
		"appid": client, "oid": client, "sub": client, "idtyp": "app",
		"iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(tokenLife).Unix(),
	}).SignedString([]byte(s.Token))
}

// principal returns the object ID of whoever has a token: the server's secret, or one that it signed and that is still valid.
func (s *Server) principal(token string) (id string, ok bool) {
	if s.isSecret(token) {
		return Tenant, true
	}
	claims := jwt.MapClaims{}
	_, err := jwt.ParseWithClaims(token, claims, func(*jwt.Token) (any, error) { return []byte(s.Token), nil },
		jwt.WithValidMethods([]string{jwt.SigningMethodHS256.Alg()}), jwt.WithExpirationRequired())
	id, _ = claims["oid"].(string)
	return id, err == nil && s.Token != ""
}

func origin(r *http.Request) string { return "https://" + r.Host }

// endpoints describes this cloud ("Azure Resource Manager metadata endpoints"): everything is where the request went. The first version of
// the interface, which "az cloud register" uses, describes one cloud, later ones list clouds, and those since 2022-09-01, which Terraform
// uses, describe one again. In the first, the authority is AD FS, as on Azure Stack Hub: MSAL asks login.microsoftonline.com about any other.
func endpoints(r *http.Request) any {
	at, version := origin(r), r.URL.Query().Get("api-version")
	if version == "2015-01-01" {
		return object{"galleryEndpoint": at, "graphEndpoint": at, "portalEndpoint": at,
			"authentication": object{"loginEndpoint": at + "/adfs", "audiences": []any{audience}}}
	}
	authentication := object{"loginEndpoint": at, "audiences": []any{audience}, "tenant": "common", "identityProvider": "AAD"}
	cloud := object{
		"name": "AzurePublicCloud", "resourceManager": at, "authentication": authentication,
		"portal": at, "gallery": at, "graph": at, "graphAudience": at, "microsoftGraphResourceId": at, "batch": at, "media": at,
		"sqlManagement": at, "vmImageAliasDoc": at, "suffixes": object{
			"storage": "core.windows.net", "keyVaultDns": "vault.azure.net", "sqlServerHostname": "database.windows.net",
			"acrLoginServer": "azurecr.io"},
	}
	if version >= "2022-09-01" {
		return cloud
	}
	return []any{cloud}
}

// login answers what clients ask before they have a token: as the Microsoft identity platform, for any tenant or authority, and as the
// managed identity endpoint of App Service. ok is false for another path.
func (s *Server) login(r *http.Request) (status int, body any, ok bool, err error) {
	path := strings.ToLower(strings.Trim(r.URL.Path, "/"))
	authority, rest, _ := strings.Cut(path, "/")
	at := origin(r) + "/" + authority
	discovery := object{
		"issuer": at + "/v2.0", "token_endpoint": at + "/oauth2/v2.0/token", "authorization_endpoint": at + "/oauth2/v2.0/authorize",
		"device_authorization_endpoint": at + "/oauth2/v2.0/devicecode", "jwks_uri": at + "/discovery/v2.0/keys",
		"response_types_supported": []any{"token"}, "subject_types_supported": []any{"pairwise"},
		"id_token_signing_alg_values_supported": []any{jwt.SigningMethodHS256.Alg()},
		"token_endpoint_auth_methods_supported": []any{"client_secret_post"},
	}
	switch {
	case path == "metadata/endpoints":
		return http.StatusOK, endpoints(r), true, nil
	case path == "msi/token":
		status, body, err = s.managedIdentity(r)
		return status, body, true, err
	case path == "common/discovery/instance":
		return http.StatusOK, object{"tenant_discovery_endpoint": at + "/v2.0/.well-known/openid-configuration", "api-version": "1.1",
			"metadata": []any{object{"preferred_network": r.Host, "preferred_cache": r.Host, "aliases": []any{r.Host}}}}, true, nil
	case rest == "v2.0/.well-known/openid-configuration", rest == ".well-known/openid-configuration":
		return http.StatusOK, discovery, true, nil
	case rest == "oauth2/v2.0/token", rest == "oauth2/token":
		status, body, err = s.clientCredentials(r)
		return status, body, true, err
	}
	return 0, nil, false, nil
}

// clientCredentials answers a service principal's login ("OAuth 2.0 client credentials flow", learn.microsoft.com). The server's secret is
// every principal's.
func (s *Server) clientCredentials(r *http.Request) (int, any, error) {
	r.Body = http.MaxBytesReader(nil, r.Body, maxBody)
	refuse := func(status int, code, description string) (int, any, error) {
		return status, object{"error": code, "error_description": description}, nil
	}
	client := r.PostFormValue("client_id")
	switch {
	case r.Method != http.MethodPost || r.PostFormValue("grant_type") != "client_credentials":
		return refuse(http.StatusBadRequest, "unsupported_grant_type", "AADSTS70003: The lab knows the grant client_credentials alone.")
	case client == "":
		return refuse(http.StatusBadRequest, "invalid_request", "AADSTS900144: The request body must contain the parameter 'client_id'.")
	case !s.isSecret(r.PostFormValue("client_secret")):
		return refuse(http.StatusUnauthorized, "invalid_client",
			"AADSTS7000215: Invalid client secret provided; 'packetwalk status -o wide' shows the lab's token.")
	}
	token, err := s.newToken(r, client, time.Now())
	seconds := int(tokenLife / time.Second)
	return http.StatusOK, object{"token_type": "Bearer", "expires_in": seconds, "ext_expires_in": seconds, "access_token": token}, err
}

// managedIdentity answers as the managed identity endpoint of App Service does, version 2019-08-01 ("How to use managed identities for App
// Service", learn.microsoft.com).
func (s *Server) managedIdentity(r *http.Request) (int, any, error) {
	if !s.isSecret(r.Header.Get("X-IDENTITY-HEADER")) {
		return 0, nil, newError(http.StatusUnauthorized, "InvalidAuthenticationToken", "The identity header is invalid.")
	}
	now, client := time.Now(), cmp.Or(r.URL.Query().Get("client_id"), systemAssigned)
	token, err := s.newToken(r, client, now)
	return http.StatusOK, object{
		"access_token": token, "token_type": "Bearer", "resource": r.URL.Query().Get("resource"), "client_id": client,
		"expires_on": strconv.FormatInt(now.Add(tokenLife).Unix(), 10),
	}, err
}

// account answers for what a login looks at: tenants, subscriptions, and a subscription's resource groups, providers and regions. ok is
// false for another path.
func (s *Server) account(n vnet.Network, path []string) (body any, ok bool, err error) {
	list := func(all ...any) object { return object{"value": all} }
	one := object{"id": "/subscriptions/" + n.Subscription, "subscriptionId": n.Subscription, "tenantId": Tenant,
		"displayName": "packetwalk", "state": "Enabled", "authorizationSource": "RoleBased"}
	where, found := strings.ToLower(strings.Join(path[min(2, len(path)):], "/")), checkPlace(n, path) == nil
	switch {
	case len(path) == 1 && strings.EqualFold(path[0], "tenants"):
		return list(object{"id": "/tenants/" + Tenant, "tenantId": Tenant, "displayName": "packetwalk"}), true, nil
	case len(path) == 1 && strings.EqualFold(path[0], "subscriptions"):
		return list(one), true, nil
	case !found:
		return nil, false, nil
	case len(path) == 2:
		return one, true, nil
	case where == "locations":
		return list(object{"id": fmt.Sprintf("%s/locations/%s", one["id"], n.Location), "name": n.Location, "displayName": n.Location}), true, nil
	case where == "providers":
		return list(providerOf(provider), providerOf("Microsoft.Compute"), providerOf("Microsoft.ContainerService")), true, nil
	case where == "resourcegroups":
		var all []any
		for _, g := range Groups(n) {
			o, err := s.resourceGroup(n, g)
			if err != nil {
				return nil, true, err
			}
			all = append(all, o)
		}
		return list(all...), true, nil
	}
	return nil, false, nil
}
