package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"

	"packetwalk.dev/internal/node/cni/ebrules"
)

// netMode names a kind of pod network.
type netMode string

// The modes of Azure CNI, and kubenet.
const (
	// modeBridge: pods are ports of a bridge that has taken over the master's addresses.
	modeBridge netMode = "bridge"
	// modeTransparent: pods are reached by a host route each; there is no bridge.
	modeTransparent netMode = "transparent"
	// modeKubenet: pods are ports of a bridge that is their gateway, with addresses of a range that is the node's alone.
	modeKubenet netMode = "kubenet"
)

// Defaults of the fields that a configuration may leave out.
const (
	defaultBridge   = "azure0"
	kubenetBridge   = "cbr0" // with mode kubenet
	defaultMaster   = "eth0"
	defaultStateDir = "/run/packetwalk-cni"
	// ipamAzure hands out the secondary addresses of the node's NIC, which the configuration lists.
	ipamAzure = "azure-vnet-ipam"
	// ipamCNS hands out the node's part of the pods' range of Azure CNI Overlay: all addresses of it, the first and the last too. On AKS, Azure
	// Container Networking Service says which they are.
	ipamCNS = "azure-cns"
	// ipamHostLocal hands out the addresses of a range that is the node's alone, as CNI's reference plugin of that name; the default with mode
	// kubenet.
	ipamHostLocal = "host-local"
)

// config is a network's configuration, parsed and checked.
type config struct {
	CNIVersion string
	Name       string
	Mode       netMode
	Bridge     string // the bridge's name (modes bridge and kubenet)
	Master     string // the node's NIC
	StateDir   string // where the state of this node's networks is kept: one folder a node
	Pool       []addrRange
	Subnet     netip.Prefix
	Gateway    netip.Addr
	DNS        types.DNS
	// Promiscuous and Hairpin are kubenet's two ways to let a pod reach itself through a service: see kubenet.go.
	Promiscuous, Hairpin bool
	// DedupChain is the ebtables chain with which a promiscuous bridge drops packets that pods would get twice.
	DedupChain string
	// ResetSettings gives pods the kernel's own network settings instead of the machine's, for nodes that are not the machine's first
	// network namespace.
	ResetSettings bool

	// PrevResult is the result of the plugin before this one, or (CHECK, DEL) the ADD's. Nil when there is none.
	PrevResult *current.Result
	// ValidAttachments are the attachments that the runtime still knows (GC only).
	ValidAttachments []types.GCAttachment
}

// wireConfig is the configuration as JSON has it.
type wireConfig struct {
	CNIVersion       string               `json:"cniVersion"`
	Name             string               `json:"name"`
	Mode             string               `json:"mode"`
	Bridge           string               `json:"bridge"`
	Master           string               `json:"master"`
	StateDir         string               `json:"stateDir"`
	IPAM             wireIPAM             `json:"ipam"`
	DNS              types.DNS            `json:"dns"`
	PromiscMode      *bool                `json:"promiscMode"`
	HairpinMode      *bool                `json:"hairpinMode"`
	DedupChain       string               `json:"dedupChain"`
	ResetSettings    bool                 `json:"resetSettings"`
	RawPrevResult    map[string]any       `json:"prevResult"`
	ValidAttachments []types.GCAttachment `json:"cni.dev/valid-attachments"`
}

type wireIPAM struct {
	Type        string   `json:"type"`
	Addresses   []string `json:"addresses"`
	AddressFile string   `json:"addressFile"`
	Subnet      string   `json:"subnet"`
	Gateway     string   `json:"gateway"`
}

// faults collects everything that is wrong with a configuration, each with its field.
type faults []error

func (f *faults) add(field, format string, args ...any) {
	*f = append(*f, fmt.Errorf("%s: %w", field, fmt.Errorf(format, args...)))
}

// parseConfig reads a network configuration (JSON, as the specification's section 1 and this plugin's own fields have it). readFile reads
// ipam.addressFile. The error lists every fault with its field; it carries the specification's code 6 (not JSON, wrong type) or 7 (a
// field's value).
func parseConfig(data []byte, readFile func(string) ([]byte, error)) (*config, error) {
	var w wireConfig
	if err := json.Unmarshal(data, &w); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			return nil, coded(types.ErrDecodingFailure, fmt.Errorf("parse network configuration: %s: %s where %s is wanted", wrong.Field,
				wrong.Value, wrong.Type))
		}
		return nil, coded(types.ErrDecodingFailure, fmt.Errorf("parse network configuration: %w", err))
	}
	c := &config{
		CNIVersion:       w.CNIVersion,
		Name:             w.Name,
		Mode:             netMode(orDefault(w.Mode, string(modeBridge))),
		Bridge:           w.Bridge,
		Master:           orDefault(w.Master, defaultMaster),
		StateDir:         orDefault(w.StateDir, defaultStateDir),
		DNS:              w.DNS,
		ValidAttachments: w.ValidAttachments,
		ResetSettings:    w.ResetSettings,
	}
	var f faults
	ipam := c.kindDefaults(w, &f)
	c.checkNames(&f)
	parse, known := ipamTypes[ipam]
	if known {
		parse(c, w.IPAM, readFile, &f)
	} else {
		f.add("ipam.type", "%q is unknown; write %s, %s or %s", ipam, ipamAzure, ipamCNS, ipamHostLocal)
	}
	c.parsePrevResult(w, &f)
	if len(f) > 0 {
		return nil, coded(types.ErrInvalidNetworkConfig, fmt.Errorf("network configuration: %w", joined(f)))
	}
	return c, nil
}

func orDefault(s, def string) string {
	if s == "" {
		return def
	}
	return s
}

// kindDefaults fills in what differs between the kinds of network, and gives the source of addresses.
func (c *config) kindDefaults(w wireConfig, f *faults) (ipam string) {
	if c.Mode == modeKubenet {
		c.Bridge = orDefault(c.Bridge, kubenetBridge)
		c.Promiscuous = w.PromiscMode == nil || *w.PromiscMode
		c.Hairpin = w.HairpinMode == nil || *w.HairpinMode
		if c.DedupChain = orDefault(w.DedupChain, ebrules.Dedup); !slices.Contains(dedupChains, c.DedupChain) {
			f.add("dedupChain", "%q is unknown; write one of %s", c.DedupChain, strings.Join(dedupChains, ", "))
		}
		return orDefault(w.IPAM.Type, ipamHostLocal)
	}
	c.Bridge = orDefault(c.Bridge, defaultBridge)
	for field, set := range map[string]bool{
		"promiscMode": w.PromiscMode != nil, "hairpinMode": w.HairpinMode != nil, "dedupChain": w.DedupChain != "",
	} {
		if set {
			f.add(field, "is a setting of mode %s; leave it out", modeKubenet)
		}
	}
	return orDefault(w.IPAM.Type, ipamAzure)
}

// dedupChains are the names that DedupChain may have: kubelet's, and that of AKS's nodes with containerd.
var dedupChains = []string{ebrules.Dedup, ebrules.DedupAKS}

func (c *config) checkNames(f *faults) {
	if c.Name == "" {
		f.add("name", "is missing")
	} else if err := utils.ValidateNetworkName(c.Name); err != nil {
		f.add("name", "%q is no network name: letters, digits, '_', '.' and '-'", c.Name)
	}
	if _, known := kinds[c.Mode]; !known {
		f.add("mode", "%q is unknown; write one of %s", c.Mode, strings.Join(modeNames(), ", "))
	}
	for field, name := range map[string]string{"bridge": c.Bridge, "master": c.Master} {
		if err := utils.ValidateInterfaceName(name); err != nil {
			f.add(field, "%q is no interface name: %s", name, err.Details)
		}
	}
	if c.Bridge == c.Master {
		f.add("bridge", "%q is the master's name too; give the bridge its own", c.Bridge)
	}
	if !filepath.IsAbs(c.StateDir) {
		f.add("stateDir", "%q is relative; write an absolute path", c.StateDir)
	}
	slices.SortFunc(*f, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
}

func (c *config) parsePrevResult(w wireConfig, f *faults) {
	if w.RawPrevResult == nil {
		return
	}
	plugin := &types.PluginConf{CNIVersion: w.CNIVersion, RawPrevResult: w.RawPrevResult}
	if err := version.ParsePrevResult(plugin); err != nil {
		f.add("prevResult", "%w", err)
		return
	}
	result, err := current.NewResultFromResult(plugin.PrevResult)
	if err != nil {
		f.add("prevResult", "%w", err)
		return
	}
	c.PrevResult = result
}

// ipamTypes are the sources of addresses, by ipam.type: each fills Pool, Subnet and Gateway.
var ipamTypes = map[string]func(*config, wireIPAM, func(string) ([]byte, error), *faults){
	ipamAzure:     parseAzureIPAM,
	ipamCNS:       parseCNS,
	ipamHostLocal: parseHostLocal,
}

// parseSubnet reads ipam.subnet and ipam.gateway.
func (c *config) parseSubnet(w wireIPAM, whose, example string, f *faults) {
	subnet, err := netip.ParsePrefix(w.Subnet)
	switch {
	case w.Subnet == "":
		f.add("ipam.subnet", "is missing; write %s, such as %s", whose, example)
	case err != nil:
		f.add("ipam.subnet", "%q is no prefix such as %s", w.Subnet, example)
	case !subnet.Addr().Is4():
		f.add("ipam.subnet", "%s is not IPv4, the only family of pods here", w.Subnet)
	case subnet != subnet.Masked() || subnet.Bits() > 30:
		f.add("ipam.subnet", "%s is no subnet; write its first address and a length of at most 30, such as %s", w.Subnet, subnet.Masked())
	default:
		c.Subnet = subnet
		c.parseGateway(w.Gateway, f)
	}
}

// parseHostLocal takes all addresses of the node's pod range but the first, which the bridge has, and the last.
func parseHostLocal(c *config, w wireIPAM, _ func(string) ([]byte, error), f *faults) {
	c.parseSubnet(w, "the node's pod range (spec.podCIDR)", "192.168.0.0/24", f)
	if len(w.Addresses) > 0 || w.AddressFile != "" {
		f.add("ipam.addresses", "goes with ipam.type %s; leave it out", ipamAzure)
	}
	if !c.Subnet.IsValid() || !c.Gateway.IsValid() {
		return
	}
	whole, _ := parseRange(c.Subnet.String())
	for _, r := range []addrRange{{whole.First.Next(), c.Gateway.Prev()}, {c.Gateway.Next(), whole.Last.Prev()}} {
		if !r.Last.Less(r.First) {
			c.Pool = append(c.Pool, r)
		}
	}
	if size := poolSize(c.Pool); size > maxPool {
		f.add("ipam.subnet", "%d addresses; the most is %d", size, maxPool)
	}
}

// parseAzureIPAM reads the NIC's secondary addresses: listed, or in a file with one a line.
func parseAzureIPAM(c *config, w wireIPAM, readFile func(string) ([]byte, error), f *faults) {
	c.parseSubnet(w, "the subnet of the node's NIC", "10.13.76.0/24", f)
	list, field := w.Addresses, "ipam.addresses"
	if w.AddressFile != "" {
		if len(list) > 0 {
			f.add("ipam.addressFile", "stands beside ipam.addresses; leave one of them out")
			return
		}
		data, err := readFile(w.AddressFile)
		if err != nil {
			f.add("ipam.addressFile", "%w", err)
			return
		}
		list, field = addressLines(data), "ipam.addressFile"
	}
	c.Pool = parseRanges(field, list, c.Subnet, c.Gateway, f)
}

// parseCNS reads the node's parts of the pods' range. The range has no gateway.
func parseCNS(c *config, w wireIPAM, _ func(string) ([]byte, error), f *faults) {
	if w.Gateway != "" {
		f.add("ipam.gateway", "goes with ipam.type %s; leave it out", ipamAzure)
	}
	if w.AddressFile != "" {
		f.add("ipam.addressFile", "goes with ipam.type %s; leave it out", ipamAzure)
	}
	c.parseSubnet(wireIPAM{Subnet: w.Subnet}, "the pods' range", "10.244.0.0/16", f)
	c.Gateway = netip.Addr{}
	if c.Mode != modeTransparent {
		f.add("ipam.type", "%s goes with mode %s", ipamCNS, modeTransparent)
	}
	c.Pool = parseRanges("ipam.addresses", w.Addresses, c.Subnet, netip.Addr{}, f)
}

func (c *config) parseGateway(s string, f *faults) {
	if s == "" { // Azure keeps a subnet's first address for its gateway.
		c.Gateway = c.Subnet.Addr().Next()
		return
	}
	gw, err := netip.ParseAddr(s)
	switch {
	case err != nil:
		f.add("ipam.gateway", "%q is no address", s)
	case !c.Subnet.Contains(gw):
		f.add("ipam.gateway", "%s is outside the subnet %s", gw, c.Subnet)
	case gw == c.Subnet.Addr() || !c.Subnet.Contains(gw.Next()):
		f.add("ipam.gateway", "%s is an end of the subnet %s", gw, c.Subnet)
	default:
		c.Gateway = gw
	}
}

// addressLines returns the entries of an address file: one a line, # starts a comment.
func addressLines(data []byte) []string {
	var list []string
	for line := range strings.Lines(string(data)) {
		text, _, _ := strings.Cut(line, "#")
		if text = strings.TrimSpace(text); text != "" {
			list = append(list, text)
		}
	}
	return list
}
