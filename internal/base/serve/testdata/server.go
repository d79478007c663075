// Package testdata is what TestOnlyHere must find.
package testdata

import web "net/http"

func serve() {
	_ = web.ListenAndServe("", nil)
	s := web.Server{}
	_ = s.Serve(nil)
	var _ *web.Server
	_ = web.Serve(nil, nil)
}
