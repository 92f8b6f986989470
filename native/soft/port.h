#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

#include "base/status.h"

namespace millrace::soft {

struct Context;

inline constexpr uint32_t kDevices = 8;  ///< soft0 .. soft7
inline constexpr uint8_t kPorts = 1;     ///< a device
inline constexpr uint16_t kFirstMulticastLid = 0xC000;
inline constexpr uint16_t kPermissiveLid = 0xFFFF;

enum class Link : uint8_t { kInfiniband = 0, kEthernet = 1 };

/** Names a device's port in QpRecord::port: ports of different link layers don't meet. */
constexpr uint32_t port_place(Link link, uint32_t device) {
  return static_cast<uint32_t>(link) << 8 | device;
}

/**
 * Devices and ports. All devices of all processes of a fabric are on one switch, so who somebody is
 * follows from the device's number alone: soft<k> has LID k + 1 (on InfiniBand), the GUID and the
 * MAC address spell its name, and the GID table is made of these. Pure functions; any thread.
 */

/** How many devices there are (MILLRACE_SOFT_DEVICES, 1 to 8; 1 if not set). EINVAL otherwise. */
base::Result<uint32_t> device_count();
/** The link layer of all ports (MILLRACE_SOFT_LINK, `infiniband` if not set). EINVAL otherwise. */
base::Result<Link> link_layer();

uint64_t device_guid(uint32_t device);  ///< host order
uint16_t device_lid(uint32_t device);   ///< InfiniBand only
/** Locally administered: 02:'s':'o':'f':'t':'0' + k. */
void device_mac(uint32_t device, uint8_t mac[6]);
/** 198.18.0.k+1 (the range for benchmarks), host order; Ethernet only. */
uint32_t device_ipv4(uint32_t device);

/** Length of a port's GID table. */
inline constexpr uint32_t kGidTable = 8;
/** How many entries of it are valid: the first ones. The others are zero. */
uint32_t gid_count(Link link);
/**
 * An entry of a port's GID table. InfiniBand: the one of the port. Ethernet, in the order in which
 * the kernel makes them: link-local v1, link-local v2, IPv4-mapped v1, IPv4-mapped v2.
 */
ibv_gid port_gid(Link link, uint32_t device, uint32_t index);
ibv_gid_type gid_type(Link link, uint32_t index);
/** Index of a GID with that type in the port's table, -1 if it is not there. */
int find_gid(Link link, uint32_t device, const ibv_gid& gid, ibv_gid_type type);
/** The device that has the GID, kDevices if none. */
uint32_t device_of_gid(Link link, const ibv_gid& gid);
/** The device that has the unicast LID, kDevices if none. */
uint32_t device_of_lid(uint16_t lid);

bool is_ipv4_mapped(const ibv_gid& gid);
/** ff00::/8, or IPv4-mapped with a group in it. */
bool is_multicast(const ibv_gid& gid);
/** The Ethernet address that a GID is reached at: a device's, or a group's. False: nobody has it.
 */
bool mac_of_gid(Link link, const ibv_gid& gid, uint8_t mac[6]);

/** Why a datagram or a frame did not get to a QP; its sender is not told. */
enum class DropReason : uint32_t {
  kNoQp = 0,         ///< no QP with that number can receive (or it has another type)
  kUnreachable = 1,  ///< it is on another port than the address says, or nobody has the address
  kQkey = 2,         ///< the Q_Key is another one
  kNoWqe = 3,        ///< nothing was posted
  kNoRing = 4,       ///< its completion ring or the CQ's directory is full
  kNoMember = 5,     ///< a group without members
  kNoRule = 6,       ///< a frame that no rule of the port matches
  kRule = 7,         ///< a rule says DROP
};

/** What a port lost since the fabric was made, by DropReason. */
struct PortCounters {
  uint64_t drops[8] = {};
};
/** The counters of the context's port, over all processes. Any thread. */
PortCounters read_port_counters(ibv_context* context);

int query_port(ibv_context* context, uint8_t port, _compat_ibv_port_attr* attr);
int query_port_ex(ibv_context* context, uint8_t port, ibv_port_attr* attr, size_t size);
int query_gid(ibv_context* context, uint8_t port, int index, ibv_gid* gid);
/** ENODATA where the port's table has no such entry, EINVAL for flags and sizes. */
int query_gid_ex(ibv_context* context, uint32_t port, uint32_t index, ibv_gid_entry* entry,
                 uint32_t flags, size_t size);
/** Entries written, or the negative errno value. */
ssize_t query_gid_table(ibv_context* context, ibv_gid_entry* entries, size_t count, uint32_t flags,
                        size_t size);
int query_pkey(ibv_context* context, uint8_t port, int index, __be16* pkey);

}  // namespace millrace::soft
