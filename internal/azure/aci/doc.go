// Package aci is Azure Container Instances as its customers see it: container groups as a resource, in the shapes of the container instance
// resource provider (api-version 2023-05-01; the SDK's armcontainerinstance has the same names), the HTTP interface of that provider at
// management.azure.com, and a client for it.
//
// What runs container groups is package instances; what turns pods into them is package connector.
package aci
