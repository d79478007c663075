// Package ipmasq makes the rules of the ip-masq-agent out of its configuration: which destinations see a pod's own address, and that all
// others see the node's.
//
// [Parse] reads configuration as kubernetes-sigs/ip-masq-agent (form v1: one file) or Azure/ip-masq-agent-v2 (form v2: several files,
// united) does. What is wrong with it comes back as data; with any error there is no configuration, and what is in force stays. [Rules]
// gives the rules, to the letter of upstream's, each with the ConfigMap, key and entry that it is there for. [RuleSet.Edit] is what brings
// a table nat to them, in one transaction.
//
// The package is pure: it must not import client-go, kernel or walk.
package ipmasq
