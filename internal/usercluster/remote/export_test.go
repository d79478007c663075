package remote

// Writing is how long the other side may take to read a message.
var Writing = &writing
