// Command reach lists the links of other network namespaces that this process may change: of those that its own namespace has an id for
// (rtnetlink(7), IFLA_TARGET_NETNSID), as a veth pair to a node gives one.
package main

import (
	"fmt"
	"os"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// maxID is the highest id that is tried.
const maxID = 15

func main() {
	found := 0
	for id := range uint32(maxID + 1) {
		request := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
		request.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
		request.AddData(nl.NewRtAttr(unix.IFLA_TARGET_NETNSID, nl.Uint32Attr(id)))
		links, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
		if err != nil {
			fmt.Printf("namespace %d: %v\n", id, err)
			continue
		}
		fmt.Printf("namespace %d: %d links\n", id, len(links))
		found += len(links)
	}
	if found > 0 {
		os.Exit(1)
	}
}
