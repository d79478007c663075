package verify

func (g *generator) nft(*site)      {}
func (g *generator) ebtables(*site) {}
