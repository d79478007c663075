// Package ruleset applies and reads the rules of a network namespace: transactions of nf_tables over netlink, nft, and iptables-restore.
package ruleset
