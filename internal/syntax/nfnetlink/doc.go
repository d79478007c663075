// Package nfnetlink is nf_tables as its netlink interface has it: tables, chains, rules, sets and elements as plain data, the messages that
// make and delete them, and the reading of what the kernel answers (include/uapi/linux/netfilter/nf_tables.h; what nft keeps beside for its
// own listings: libnftnl's udata.h). It sends nothing and imports nothing of the project.
package nfnetlink
