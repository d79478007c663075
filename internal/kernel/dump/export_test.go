package dump

// ManyChains is from where on the rules of iptables' tables are not asked for twice.
var ManyChains = &manyChains

// ProgramDirs are where tools are looked for besides the PATH, for tests of machines that have none.
var ProgramDirs = &programDirs
