package dump

// ProgramDirs are where tools are looked for besides the PATH, for tests of machines that have none.
var ProgramDirs = &programDirs
