// Package pages holds the pages of the repository to what they are for.
package pages
