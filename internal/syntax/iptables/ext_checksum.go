package iptables

var checksumTarget = targetExtension{
	options: spec("checksum-fill=0"),
	note:    "fill in the checksum",
	listed:  func(l *restReader, t *Target) bool { return l.lit("CHECKSUM fill") && t.add("checksum-fill") },
}
