// Package iptables turns service ports into iptables objects: the rule sets of kube-proxy, of today and of earlier versions, to the letter.
// It plans what a restore has to change (all own chains, or only those that differ), and finds what others have deleted in a dump.
//
// Generation and planning are pure; Syncer drives them through an Applier.
package iptables
