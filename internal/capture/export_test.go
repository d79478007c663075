package capture

import "io"

// ReadWithin is Read with other limits.
func ReadWithin(r io.Reader, files int, file, total int64) (*Capture, error) {
	return readWithin(r, limits{files, file, total})
}
