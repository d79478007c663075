// Package iptables turns service ports into iptables objects: the rule sets of kube-proxy, of today and of earlier ages, to the letter.
// It plans what a restore has to change (all own chains, or only those that differ), finds what others have deleted in a dump, and serves
// health check node ports and the proxy's own health.
//
// Generation and planning are pure; Syncer drives them through an Applier.
package iptables
