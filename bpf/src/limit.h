/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */

/*
 * Limits of what endpoints send, in packets and in bytes a second: token buckets of each
 * endpoint, and of each user for all of its endpoints together. An endpoint that has a limit, or
 * whose user has one, has unet_port_limited on its port, others have unet_port. So these pay nothing.
 *
 * A frame takes one packet, and its bytes from the Ethernet header on, in all its buffers. If
 * a bucket of the endpoint or of its user has too little, the frame is refused and takes nothing.
 *
 * The clock is that of the last tick of the kernel, which is cheap to read, and the exact one before a
 * frame is refused. A lock makes the buckets exact for all processors: in any time t, no more passes than
 * full + rate * (t + tick), where a tick is 1 to 10 ms; what is refused would have been refused with the exact clock
 * too. Arithmetic is in whole numbers, without rounding (struct unet_bucket).
 *
 * The lock is that of the user, or of the endpoint if its user has no limit. User space changes an entry under
 * the entry's own lock. So a change of an endpoint's entry can meet a frame, whose result one of them then overwrites: a
 * level is wrong by that, until it is full or empty, and never above full for longer than a frame.
 */
#ifndef UNET_LIMIT_H
#define UNET_LIMIT_H

#include "check.h"
#include "kernel.h"

#define UNIT 1000000000ull /* of a bucket, in a packet or byte */

/* The limits of endpoints, by the ifindex of the port's outer end. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, UNET_MAX_PORTS);
	__type(key, __u32);
	__type(value, struct unet_limit);
} port_limits SEC(".maps");

/* Those of users, by uid. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, UNET_MAX_PORTS);
	__type(key, __u32);
	__type(value, struct unet_limit);
} user_limits SEC(".maps");

/* fill adds what the rate gives in a time. The product is less than full, which is at most 2^63 (bpf.NewBucket): nothing overflows. */
static __always_inline void fill(struct unet_bucket *b, __u64 elapsed)
{
	b->level = elapsed < b->fill_ns ? b->level + elapsed * b->rate : b->full;
	if (b->level > b->full)
		b->level = b->full;
}

/* may_take: the bucket has so much, or there is no limit. */
static __always_inline bool may_take(const struct unet_bucket *b, __u64 n)
{
	return !b->rate || b->level >= n * UNIT;
}

static __always_inline void take(struct unet_bucket *b, __u64 n)
{
	if (b->rate)
		b->level -= n * UNIT;
}

/* advance fills a limit's buckets up to now. */
static __always_inline void advance(struct unet_limit *l, __u64 now)
{
	__s64 elapsed = now - l->last;

	if (elapsed <= 0) /* another processor has read a later time */
		return;
	fill(&l->packets, elapsed);
	fill(&l->bytes, elapsed);
	l->last = now;
}

/* may_send: a frame is within a limit. */
static __always_inline bool may_send(const struct unet_limit *l, __u32 len)
{
	return may_take(&l->packets, 1) && may_take(&l->bytes, len);
}

static __always_inline void take_frame(struct unet_limit *l, __u32 len)
{
	take(&l->packets, 1);
	take(&l->bytes, len);
}

/*
 * admit takes a frame from the buckets as they are at a time. It returns the counter of the reason why it cannot, or
 * ALLOWED. user is NULL if it has no limit. exactly: what is refused is counted.
 */
static __always_inline int admit(struct unet_limit *endpoint, struct unet_limit *user, __u32 len, __u64 now, bool exactly)
{
	struct bpf_spin_lock *lock = user ? &user->lock : &endpoint->lock;
	int problem = ALLOWED;

	bpf_spin_lock(lock);
	advance(endpoint, now);
	if (user)
		advance(user, now);
	if (unlikely(!may_send(endpoint, len))) {
		endpoint->refused += exactly;
		problem = UNET_TX_RATE_ENDPOINT;
	} else if (user && unlikely(!may_send(user, len))) {
		endpoint->refused_user += exactly;
		problem = UNET_TX_RATE_USER;
	} else {
		take_frame(endpoint, len);
		if (user)
			take_frame(user, len);
	}
	bpf_spin_unlock(lock);
	return problem;
}

/* limit returns the counter of the reason to drop a frame of len bytes from a port, or ALLOWED. Without an entry there is no limit. */
static __always_inline int limit(__u32 port, __u32 len)
{
	struct unet_limit *endpoint = bpf_map_lookup_elem(&port_limits, &port), *user = NULL;
	__u32 uid;

	if (unlikely(!endpoint))
		return ALLOWED;
	uid = endpoint->uid;
	if (uid != UNET_NO_USER)
		user = bpf_map_lookup_elem(&user_limits, &uid);
	if (likely(admit(endpoint, user, len, bpf_ktime_get_coarse_ns(), false) == ALLOWED))
		return ALLOWED;
	return admit(endpoint, user, len, bpf_ktime_get_ns(), true);
}

#endif
