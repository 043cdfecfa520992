//go:build race

package rdma

const underRace = true
