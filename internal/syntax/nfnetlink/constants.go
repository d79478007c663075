package nfnetlink

import "syscall"

// The kernel's numbers are written down here, and not taken from golang.org/x/sys/unix, which has them for Linux alone: what reads and writes
// these messages, and says what rules are for, is built for other systems, too. TestConstants compares them with that package's.

// ErrGeneration is the kernel's answer to a batch for rules of another generation (include/uapi/asm-generic/errno.h: ERESTART).
const ErrGeneration = syscall.Errno(85)

// Address families (include/uapi/linux/netfilter.h: NFPROTO_…).
const (
	IPv4 = 2
	IPv6 = 10
)

// Hooks of the kernel (include/uapi/linux/netfilter.h: NF_INET_…).
const (
	Prerouting  = 0
	Input       = 1
	Forward     = 2
	Output      = 3
	Postrouting = 4
)

// Keys of [Meta] and [SetMeta] (include/uapi/linux/netfilter/nf_tables.h: enum nft_meta_keys).
const (
	MetaMark    = 3
	MetaIifname = 6
	MetaL4Proto = 16
)

// Keys of [Conntrack], [ConntrackOriginal] and [ConntrackReply] (include/uapi/linux/netfilter/nf_tables.h: enum nft_ct_keys).
const (
	CtState    = 0
	CtStatus   = 2
	CtProtoSrc = 11
	CtProtoDst = 12
	CtDstIP    = 20
	CtDstIP6   = 22
)

// Headers that [Payload] reads (include/uapi/linux/netfilter/nf_tables.h: enum nft_payload_bases).
const (
	NetworkHeader   = 1
	TransportHeader = 2
)

// Operators of [Compare] (include/uapi/linux/netfilter/nf_tables.h: enum nft_cmp_ops).
const (
	Equal    = 0
	NotEqual = 1
)

// Addresses that [AddressType] looks up (include/uapi/linux/netfilter/nf_tables.h: enum nft_fib_flags).
const (
	FIBSource      = 1
	FIBDestination = 2
)

// RouteLocal is the type of routes to addresses of the host itself (include/uapi/linux/rtnetlink.h: RTN_LOCAL).
const RouteLocal = 2

// InterfaceNameLen is how many bytes a name of an interface takes in a register (include/uapi/linux/if.h: IFNAMSIZ).
const InterfaceNameLen = 16

// Messages about nf_tables (include/uapi/linux/netfilter/nf_tables.h: enum nf_tables_msg_types).
const (
	msgNewTable         = 0
	msgGetTable         = 1
	msgDeleteTable      = 2
	msgNewChain         = 3
	msgGetChain         = 4
	msgDeleteChain      = 5
	msgNewRule          = 6
	msgGetRule          = 7
	msgDeleteRule       = 8
	msgNewSet           = 9
	msgGetSet           = 10
	msgDeleteSet        = 11
	msgNewSetElement    = 12
	msgGetSetElement    = 13
	msgDeleteSetElement = 14
	msgNewGeneration    = 15
	msgGetGeneration    = 16
)

// Messages of nfnetlink (include/uapi/linux/netfilter/nfnetlink.h: NFNL_SUBSYS_NFTABLES, NFNETLINK_V0, NFNL_MSG_BATCH_…, and AF_UNSPEC).
const (
	unspecified = 0
	nfnetlinkV0 = 0
	subsystem   = 10
	batchBegin  = 16
	batchEnd    = 17
)

// nestedFlag marks an attribute that has attributes (include/uapi/linux/netlink.h: NLA_F_NESTED).
const nestedFlag = 1 << 15

// Flags of sets (include/uapi/linux/netfilter/nf_tables.h: enum nft_set_flags).
const (
	setInterval = 4
	setMap      = 8
	setTimeout  = 0x10
	setEval     = 0x20
)

// Values of expressions' attributes (include/uapi/linux/netfilter/nf_tables.h, but NF_NAT_RANGE_PROTO_RANDOM_FULLY: nf_nat.h).
const (
	regVerdict        = 0
	rejectICMP        = 0
	dynsetUpdate      = 1
	natDNAT           = 1
	numgenRandom      = 1
	fibResultAddrtype = 3
	reg32             = 8
	natRandomFully    = 0x10
)

// Attributes (include/uapi/linux/netfilter/nf_tables.h: NFTA_…).
const (
	attrBitwiseSreg = 1
	attrBitwiseDreg = 2
	attrBitwiseLen  = 3
	attrBitwiseMask = 4
	attrBitwiseXor  = 5

	attrChainTable    = 1
	attrChainHandle   = 2
	attrChainName     = 3
	attrChainHook     = 4
	attrChainPolicy   = 5
	attrChainUse      = 6
	attrChainType     = 7
	attrChainCounters = 8

	attrCmpSreg = 1
	attrCmpOp   = 2
	attrCmpData = 3

	attrCtDreg      = 1
	attrCtKey       = 2
	attrCtDirection = 3

	attrDataValue   = 1
	attrDataVerdict = 2

	attrDynsetSetName  = 1
	attrDynsetOp       = 3
	attrDynsetSregKey  = 4
	attrDynsetSregData = 5

	attrExpressionName = 1
	attrExpressionData = 2

	attrFIBDreg   = 1
	attrFIBResult = 2
	attrFIBFlags  = 3

	attrGenID = 1

	attrHookHooknum  = 1
	attrHookPriority = 2

	attrImmediateDreg = 1
	attrImmediateData = 2

	attrListElement = 1

	attrLookupSet   = 1
	attrLookupSreg  = 2
	attrLookupDreg  = 3
	attrLookupFlags = 5

	attrMasqFlags = 1

	attrMetaDreg = 1
	attrMetaKey  = 2
	attrMetaSreg = 3

	attrNATType        = 1
	attrNATFamily      = 2
	attrNATRegAddrMin  = 3
	attrNATRegProtoMin = 5

	attrNumgenDreg    = 1
	attrNumgenModulus = 2
	attrNumgenType    = 3

	attrPayloadDreg   = 1
	attrPayloadBase   = 2
	attrPayloadOffset = 3
	attrPayloadLen    = 4

	attrRejectType     = 1
	attrRejectICMPCode = 2

	attrRuleTable       = 1
	attrRuleChain       = 2
	attrRuleHandle      = 3
	attrRuleExpressions = 4
	attrRulePosition    = 6
	attrRuleUserdata    = 7

	attrSetTable    = 1
	attrSetName     = 2
	attrSetFlags    = 3
	attrSetKeyType  = 4
	attrSetKeyLen   = 5
	attrSetDataType = 6
	attrSetDataLen  = 7
	attrSetDesc     = 9
	attrSetID       = 10
	attrSetTimeout  = 11
	attrSetUserdata = 13

	attrSetDescSize = 1

	attrSetElementKey      = 1
	attrSetElementData     = 2
	attrSetElementUserdata = 6

	attrSetElementListTable    = 1
	attrSetElementListSet      = 2
	attrSetElementListElements = 3

	attrTableName  = 1
	attrTableFlags = 2

	attrVerdictCode  = 1
	attrVerdictChain = 2
)
