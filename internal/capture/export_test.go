package capture

import "bytes"

// ReadWithin is Read with other limits for version 1.
func ReadWithin(file []byte, files int, most, total int64) (*File, error) {
	return readWithin(bytes.NewReader(file), int64(len(file)), limits{files, most, total})
}
