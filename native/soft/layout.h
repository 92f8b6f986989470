#pragma once

#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "soft/packet.h"

// What lies in shared memory. Every structure is plain data plus lock-free atomics and starts
// zeroed (the files are fresh). Names of processes are (slot, incarnation); an incarnation is a
// number that is never used twice in the life of a fabric, so a word that carries one can be
// compared and swapped without fear of a newcomer in the same slot (R6, R10).
//
// A layout is major.minor. Only processes of the same layout share a fabric.
//   major  moves with the first release after a change, and minor goes back to 0. It is in the
//          folder's name: the layouts of two releases coexist unseen (`millrace ls` says so).
//   minor  moves with each change between releases, in size, place or meaning. Builds of it meet in
//          one folder: who finds a root of another layout makes it anew if nobody uses it, and else
//          says so. Sizes and places are in kLayoutFingerprint too, should the number be forgotten.
// The same in all layouts, so that each can judge any other: the first 40 bytes of the root file,
// an OFD lock on some byte of it for each process that uses it, and an flock on the folder while
// one joins, leaves or cleans.

namespace millrace::soft {

inline constexpr uint32_t kLayoutMajor = 1;
inline constexpr uint32_t kLayoutMinor = 3;
inline constexpr uint64_t kRootMagic = 0x314F4F52524C494Dull;     // "MILRROO1"
inline constexpr uint64_t kRingMagic = 0x31474E49524C494Dull;     // "MILRING1"
inline constexpr uint64_t kProcessMagic = 0x31434F52504C494Dull;  // "MILPROC1"
inline constexpr uint32_t kByteOrder = 0x01020304u;

inline constexpr uint32_t kProcesses = 256;
inline constexpr uint32_t kSrqs = 8192;
inline constexpr uint32_t kQps = 16384;
inline constexpr uint32_t kTargetQps = 4096;  ///< XRC targets: the QP indices below this
inline constexpr uint32_t kAtomicLocks = 1024;
inline constexpr uint32_t kXrcds = 1024;    ///< opened (process, domain) pairs
inline constexpr uint32_t kQpHolders = 64;  ///< processes that may hold one target QP
inline constexpr uint32_t kMrs = 4096;      ///< regions and windows of a process
inline constexpr uint32_t kPds = 4096;      ///< a process
inline constexpr uint32_t kBackings = 512;  ///< mapped files a process has regions in
inline constexpr uint32_t kBackingPath = 480;
inline constexpr uint32_t kRingsPerCq = 1024;
inline constexpr uint32_t kParkEntries = 256;  ///< QPs that may wait for one SRQ by being woken
/** Park entries of a connected QP's own receive queue: its peer, and one that has not yet let go.
 */
inline constexpr uint32_t kOwnParkEntries = 2;
inline constexpr uint32_t kMaxSrqSge = 8;
inline constexpr uint32_t kMaxRecvSge = 30;  ///< of a QP's own receive queue
inline constexpr uint32_t kMaxSendSge = 30;
inline constexpr uint32_t kMaxSrqWr = 16384;  ///< also of a QP's own receive queue
inline constexpr uint32_t kMaxCqe = 65536;
inline constexpr uint32_t kGroups = 2048;       ///< attachments of QPs to multicast groups
inline constexpr uint32_t kFlows = 16384;       ///< flow rules of all ports
inline constexpr uint32_t kFlowStep = 512;      ///< reserved at first, then as many again
inline constexpr uint32_t kSpreads = 256;       ///< QPs with receive side scaling
inline constexpr uint32_t kSpreadQueues = 128;  ///< work queues that one of them spreads to
inline constexpr uint32_t kHashKey = 40;        ///< bytes of a Toeplitz key
inline constexpr uint32_t kPortRecords = 8;     ///< a device has one port
inline constexpr uint32_t kDropReasons = 8;
inline constexpr uint32_t kNumberBits = 24;  ///< QP and SRQ numbers
inline constexpr uint32_t kNumberMask = (1u << kNumberBits) - 1;
inline constexpr size_t kUnit = 64;  ///< references count in cache lines
inline constexpr size_t kChunkBytes = size_t{1} << 20;
inline constexpr uint16_t kNoChannel = 0xFFFF;

using Word = std::atomic<uint64_t>;
using Half = std::atomic<uint32_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == 8);
static_assert(Half::is_always_lock_free && sizeof(Half) == 4);

/** (slot, incarnation) in one word; never 0 for a process, because incarnations start at 1. */
constexpr uint64_t owner_word(uint32_t slot, uint32_t incarnation) {
  return (static_cast<uint64_t>(slot) << 32) | incarnation;
}
constexpr uint32_t owner_slot(uint64_t owner) {
  return static_cast<uint32_t>(owner >> 32) & 0xFFFF;
}
constexpr uint32_t owner_incarnation(uint64_t owner) { return static_cast<uint32_t>(owner); }

/**
 * Which receive queue: the number of an SRQ, or that of a QP (with kOwnQueue) for the queue that
 * this QP has for itself. 0 is none.
 */
using QueueId = uint32_t;
inline constexpr QueueId kOwnQueue = 1u << kNumberBits;
constexpr QueueId own_queue(uint32_t qpn) { return kOwnQueue | (qpn & kNumberMask); }

/**
 * State word of a receive WQE: exactly one of these (R1). POSTED carries the queue and, for a QP's
 * own queue, the epoch of its connection (QpRecord::health): memory that is used again after a
 * RESET has no word that somebody of the last connection could take (R24, R25).
 */
constexpr uint64_t kWqeEmpty = 0;  ///< never posted
constexpr uint64_t kWqeClosed = uint64_t{3} << 62;
constexpr uint64_t wqe_posted(QueueId queue, uint32_t epoch = 0) {
  return (uint64_t{1} << 62) | (static_cast<uint64_t>(epoch) << 25) | queue;
}
static_assert(kNumberBits + 1 + 32 < 62, "kind, epoch and queue fit one word");
constexpr uint64_t wqe_taken(uint64_t owner) { return (uint64_t{2} << 62) | owner; }
constexpr bool wqe_is_taken(uint64_t word) { return (word >> 62) == 2; }
constexpr uint64_t wqe_taker(uint64_t word) { return word & ~(uint64_t{3} << 62); }

/** A place in a chunk of a process that is known from the context. */
struct Ref {
  uint32_t chunk = 0;
  uint32_t unit = 0;   ///< offset / kUnit
  uint32_t bytes = 0;  ///< size of the structure, to be checked against the mapping before use (I9)
  uint32_t reserved = 0;
};
static_assert(sizeof(Ref) == 16);

// ----------------------------------------------------------------------------------------------
// root file

struct RootHeader {
  uint64_t magic;
  uint32_t major, minor;
  uint32_t byte_order;
  uint32_t page_size;
  uint64_t fingerprint;  ///< kLayoutFingerprint
  uint64_t bytes;        ///< of the whole file
  alignas(64) Word next_incarnation;
  Word next_srqn;
  Word next_qpn;
  Word next_pd;
  Word next_target;
  Word next_flow;       ///< age of flow rules
  Word groups_changed;  ///< counts changes of the table, after each (R32)
  Word flows_changed;
  Word flows_reserved;  ///< records of the table that have memory; only grows
};
static_assert(offsetof(RootHeader, bytes) == 32 && offsetof(RootHeader, next_incarnation) == 64);
static_assert(sizeof(RootHeader) == 192);

enum class ProcessState : uint32_t { kFree = 0, kLive = 1, kReaping = 2 };
constexpr uint64_t process_word(ProcessState state, uint32_t incarnation) {
  return (static_cast<uint64_t>(state) << 32) | incarnation;
}

/** One joined process. The state word changes only by CAS; the rest is written before it says LIVE.
 */
struct ProcessRecord {
  Word state;    ///< process_word()
  uint32_t pid;  ///< in the process's own pid namespace
  uint32_t reserved;
  uint64_t pid_namespace;  ///< inode of /proc/self/ns/pid: process_vm_* works only within one
  uint64_t boot;           ///< hash of the boot id
  uint64_t reserved2[4];
};
static_assert(sizeof(ProcessRecord) == 64);

/** Key of an XRC domain: the inode behind the descriptor that it was opened with. */
struct XrcdKey {
  uint64_t device = 0;
  uint64_t inode = 0;
  bool operator==(const XrcdKey&) const = default;
};

/** In XrcdRecord::owner: the key is filled in. */
inline constexpr uint64_t kAnnounced = uint64_t{1} << 63;

/** An XRC domain that a process has open. `owner` is 0 when free; kAnnounced is the commit. */
struct XrcdRecord {
  Word owner;
  XrcdKey key;
  uint64_t reserved;
};
static_assert(sizeof(XrcdRecord) == 32);

/**
 * A QP's attachment to a multicast group. `owner` is a claim word, see claims.h: 0 free, a
 * process's name while it is filled in, then live.
 */
struct GroupRecord {
  Word owner;
  uint8_t gid[16];
  uint32_t qpn;
  uint16_t lid;  ///< 0: any
  uint16_t device;
  uint64_t reserved[4];
};
static_assert(sizeof(GroupRecord) == 64);

/** A flow rule of a device's port; `owner` as above. The counts are the only fields that others
 * write. */
struct FlowRecord {
  // What is looked at for each frame, in one line of memory.
  Word owner;
  Word packets;
  Word bytes;
  uint64_t order;
  uint32_t qpn;
  uint32_t tag;
  uint16_t device;
  uint16_t priority;
  uint8_t kind;     ///< FlowKind
  uint8_t flags;    ///< see flow.cc
  uint16_t spread;  ///< 1 + index of the SpreadRecord of its QP; 0: none
  uint64_t reserved1[2];
  FlowMatch match;
  uint64_t reserved2[2];
};
static_assert(offsetof(FlowRecord, match) == 64);
static_assert(sizeof(FlowRecord) == 448);

/** How a RAW_PACKET QP with receive side scaling spreads frames; `owner` as above. */
struct SpreadRecord {
  Word owner;
  uint64_t fields;  ///< ibv_rx_hash_fields
  uint32_t size;    ///< of the indirection table, a power of two
  uint32_t reserved;
  uint8_t key[kHashKey];
  uint32_t qpns[kSpreadQueues];
};
static_assert(sizeof(SpreadRecord) == 576);

/** What a device's port lost, by DropReason. */
struct PortRecord {
  Word drops[kDropReasons];
};
static_assert(sizeof(PortRecord) == 64);

enum class Life : uint32_t { kFree = 0, kCreating = 1, kLive = 2, kClosing = 3 };

/**
 * Commit word of an SRQ or QP record: number (24 bits), life (4), verbs state (4, QPs only), and an
 * incarnation: the creator's while CREATING and for objects that die with it; the closer's while
 * CLOSING; 0 for a live target.
 */
constexpr uint64_t record_word(uint32_t number, Life life, uint32_t state, uint32_t incarnation) {
  return (static_cast<uint64_t>(incarnation) << 32) | (static_cast<uint64_t>(state & 15) << 28) |
         (static_cast<uint64_t>(life) << 24) | (number & kNumberMask);
}
constexpr uint32_t record_number(uint64_t word) {
  return static_cast<uint32_t>(word) & kNumberMask;
}
constexpr Life record_life(uint64_t word) { return static_cast<Life>((word >> 24) & 15); }
constexpr uint32_t record_state(uint64_t word) { return static_cast<uint32_t>(word >> 28) & 15; }
constexpr uint32_t record_incarnation(uint64_t word) { return static_cast<uint32_t>(word >> 32); }

/** Where an SRQ number leads. Filled before the word says LIVE; a reader copies and then reads the
 * word again. */
struct SrqRecord {
  Word word;
  uint64_t owner;
  XrcdKey xrcd;  ///< of an XRC SRQ; a basic one has none and is reached through QPs only
  Ref queue;     ///< QueueShared, in the owner's chunks
  uint32_t basic;
  uint32_t reserved0;
  uint64_t reserved;
};
static_assert(sizeof(SrqRecord) == 64);

/**
 * `health` of a QP: the epoch (a number new at each RESET, never set back, not even when another QP
 * gets the record) and why the QP failed, kHealthy while it has not. Whoever finds a responder at
 * fault changes it by CAS from the healthy word of the epoch that he is connected to; so it can not
 * hit a later connection. The owner alone changes the epoch.
 */
enum class Fault : uint32_t {
  kHealthy = 0,
  kAccess = 1,     ///< IBV_EVENT_QP_ACCESS_ERR
  kRequest = 2,    ///< IBV_EVENT_QP_REQ_ERR
  kOperation = 3,  ///< IBV_EVENT_QP_FATAL
  kReported = 4,   ///< a receive completion of its own says it
};
constexpr uint64_t health_word(uint32_t epoch, Fault fault) {
  return (static_cast<uint64_t>(epoch) << 32) | static_cast<uint32_t>(fault);
}
constexpr uint32_t health_epoch(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
constexpr Fault health_fault(uint64_t word) { return static_cast<Fault>(word & 0xFF); }

/**
 * A QP number. For an XRC target this is the QP itself: no process owns it (VERBS 2.7), and its
 * holders are in a table of their own, by the same index. Else it is what others need to know of a
 * QP; its owner alone changes it, and what a reader may rely on is written before the word's state
 * says INIT (queue, CQ, pd) or RTR (dest_qpn, the path).
 */
struct QpRecord {
  Word word;
  Word health;     ///< health_word(); not for XRC
  uint64_t owner;  ///< the creator; of a target only for diagnosis
  uint32_t type;   ///< ibv_qp_type
  Half access;     ///< IBV_ACCESS_* that the QP grants to its peer
  Half min_rnr_timer;
  Half dest_qpn;
  Half rq_psn;
  Half sq_psn;
  Half path_mtu;
  Half timeout;
  Half max_dest_rd_atomic;
  Half qkey;
  alignas(64) XrcdKey xrcd;  ///< of an XRC target
  // Not for XRC:
  Word gid[2];    ///< remote GID of the connection, where it has one
  Half port;      ///< port_place() << 8 | port number
  Half remote;    ///< remote LID of the connection, where it has one
  uint32_t pd;    ///< keys of one-sided operations are checked against it
  uint32_t srqn;  ///< of the SRQ that it receives from; 0: its own queue
  Half wake;      ///< number of the FIFO that wakes its context
  uint32_t reserved0[3];
  alignas(64) Ref queue;  ///< QueueShared of its own receive queue; no bytes: it has none
  Ref cq;                 ///< CqShared of its receive CQ
  uint64_t reserved[4];
};
static_assert(offsetof(QpRecord, xrcd) == 64 && offsetof(QpRecord, queue) == 128);
static_assert(sizeof(QpRecord) == 192);

/** Incarnations of the processes with a handle to an XRC target; 0 is free. */
struct QpHolders {
  Half holder[kQpHolders];
};
static_assert(sizeof(QpHolders) == 256);

constexpr size_t align_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

/** A table of the root file, of records of type T. */
template <class T>
struct Table {
  size_t offset;
  uint32_t count;
  constexpr size_t end() const { return offset + count * sizeof(T); }
};
inline constexpr Table<ProcessRecord> kProcessTable = {4096, kProcesses};
inline constexpr Table<XrcdRecord> kXrcdTable = {kProcessTable.end(), kXrcds};
inline constexpr Table<SrqRecord> kSrqTable = {kXrcdTable.end(), kSrqs};
inline constexpr Table<QpRecord> kQpTable = {kSrqTable.end(), kQps};
inline constexpr Table<QpHolders> kHolderTable = {kQpTable.end(), kTargetQps};
inline constexpr Table<GroupRecord> kGroupTable = {kHolderTable.end(), kGroups};
inline constexpr Table<PortRecord> kPortTable = {kGroupTable.end(), kPortRecords};
inline constexpr Table<SpreadRecord> kSpreadTable = {kPortTable.end(), kSpreads};
inline constexpr Table<Word> kLockTable = {kSpreadTable.end(), kAtomicLocks};  ///< see atomic.cc
/** The last: most fabrics have no rules, so its memory is reserved as it comes into use. */
inline constexpr Table<FlowRecord> kFlowTable = {align_up(kLockTable.end(), 64), kFlows};
inline constexpr size_t kRootBytes = kFlowTable.end();  ///< before it is rounded up to pages

// ----------------------------------------------------------------------------------------------
// a process's chunks

/** A file that some registered regions of a process are a shared mapping of. */
struct Backing {
  uint64_t device, inode;
  Half users;  ///< regions in it; written by the owner only
  uint32_t reserved;
  char path[kBackingPath];  ///< absolute, zero-terminated
  uint64_t reserved2;
};
static_assert(sizeof(Backing) == 512);

inline constexpr uint32_t kNoBacking = 0xFFFFFFFF;
constexpr uint64_t mr_live(uint32_t generation) { return (uint64_t{1} << 32) | generation; }

/**
 * Key of a region or window: the slot of its process, the index in that process's table, and a tag,
 * which is the low byte of the generation. So a key names one process of the fabric, and a region
 * that was imported (ibv_import_mr) is found with the key that its maker has.
 */
constexpr uint32_t mr_key(uint32_t slot, uint32_t index, uint32_t tag) {
  return (slot << 20) | (index << 8) | (tag & 0xFF);
}
constexpr uint32_t key_slot(uint32_t key) { return key >> 20; }
constexpr uint32_t key_index(uint32_t key) { return (key >> 8) & (kMrs - 1); }
static_assert(kMrs == 1u << 12 && kProcesses <= 1u << 12);

enum class MrKind : uint32_t { kRegion = 0, kWindow1 = 1, kWindow2 = 2 };

/**
 * A registered region or a memory window. Written by its owner while `state` is 0; a peer copies
 * it, reads `state` again and uses the copy. `state` is 0 or mr_live(generation). A generation is
 * never used twice for an index; what is registered or bound again with the key it had moves its
 * upper bits on. A window's state is also taken from live to 0, by CAS, by a peer that sends with
 * invalidate.
 */
struct MrRecord {
  Word state;
  uint64_t address;  ///< in the owner's address space
  uint64_t length;
  uint64_t iova;  ///< the address that work requests use for the first byte
  uint32_t access;
  uint32_t pd;
  uint32_t backing;  ///< index, or kNoBacking: memory that only process_vm_* reaches
  uint32_t generation;
  uint64_t file_offset;  ///< of `address` in the backing file
  MrKind kind;
  uint32_t qp;  ///< of a type 2 window: the QP that it was bound on, and is good for alone
};
static_assert(sizeof(MrRecord) == 64);

/** Start of chunk 0 of each process. */
struct ProcessShared {
  uint64_t magic;
  uint64_t owner;
  uint32_t pid, reserved0;
  uint64_t reserved[5];
  MrRecord mrs[kMrs];
  Backing backings[kBackings];
  Half pds[kPds];  ///< numbers of its PDs, 0 is free; written by the owner only
  /** Grows whenever a bit of `faults` was set by somebody else (R31). */
  alignas(64) Word attention;
  /** QPs of this process, by index, that somebody else has found at fault. */
  alignas(64) Word faults[kQps / 64];
};
static_assert(offsetof(ProcessShared, mrs) == 64);

/** In Entry::flags: `imm` holds the tag of the flow rule that matched. */
inline constexpr uint8_t kEntryTagged = 0x80;

/** In Entry::flags: the message is in the ring's slot of this position, and whoever polls the entry
 * places it (R35). */
inline constexpr uint8_t kEntryCarried = 0x40;
/** Slots for messages of a ring, and how long such a message may be. */
inline constexpr uint32_t kCarrySlots = 64;
inline constexpr uint32_t kCarryBytes = 1024;

/** One receive completion on its way from an initiator. */
struct Entry {
  uint16_t wqe;  ///< index in the receive queue
  uint16_t slid;
  uint32_t byte_len;
  uint32_t imm;    ///< network order, as posted; or the R_Key that was invalidated
  uint8_t opcode;  ///< ibv_wc_opcode - IBV_WC_RECV
  uint8_t flags;   ///< ibv_wc_flags
  uint8_t status;  ///< ibv_wc_status
  uint8_t solicited;
  uint32_t src_qp;    ///< service level in the top byte
  uint32_t qp_num;    ///< of the target; DLID path bits in the top byte
  QueueId queue;      ///< 0: taken back by the receiver
  uint16_t position;  ///< low part of the ring position, to find a damaged ring
  uint16_t pkey_index;
};
static_assert(kMaxSrqWr <= 0x10000);
static_assert(sizeof(Entry) == 32);

/**
 * Completions of one initiating QP for one CQ: a file of its own, made by the initiator before it
 * claims a directory entry, named after numbers that both sides know (ring_name), and removed by
 * the receiver. So what was committed can be read however the initiator ends. The initiator writes
 * slots, entries and tail, the receiver head. Head and tail only grow and are never set to zero
 * (R3).
 */
struct Ring {
  uint64_t magic;
  uint64_t initiator;
  uint64_t receiver;
  uint32_t qpn;
  uint32_t capacity;      ///< a power of two
  uint32_t park_channel;  ///< wake FIFO of the initiator
  /** Set between the claim and its announcement. 0 and a dead initiator: nothing was ever
   * committed, anybody may remove it. */
  Half claimed;
  uint64_t reserved[3];
  alignas(64) Word tail;  ///< the only commit (R1)
  Half closed;  ///< set after the last tail; the initiator will not touch the ring any more
  alignas(64) Word head;
  alignas(64)
      Word park;  ///< the initiator waits for room: a number new at each parking (R10); 0 nobody
  alignas(64) Entry entries[1];  // capacity of them
};
static_assert(offsetof(Ring, tail) == 64 && offsetof(Ring, head) == 128);
static_assert(offsetof(Ring, park) == 192 && offsetof(Ring, entries) == 256);
/** Where the slots for messages begin, from the start of the ring's file. Up to here its memory is
 * reserved when it is made; that of the slots not before the first message that needs one. */
constexpr size_t carry_offset(uint32_t capacity) {
  return (offsetof(Ring, entries) + capacity * sizeof(Entry) + 4095) / 4096 * 4096;
}
constexpr size_t ring_bytes(uint32_t capacity) {
  return carry_offset(capacity) + size_t{kCarrySlots} * kCarryBytes;
}

/**
 * Directory entry of a CQ: who owns the ring with that index. One word and nothing else, because
 * the ring's name follows from it: incarnation (32 bits), slot (8), QP number (24); 0 is free. Only
 * the receiver ever frees one.
 */
constexpr uint64_t directory_word(uint32_t slot, uint32_t incarnation, uint32_t qpn) {
  return (static_cast<uint64_t>(incarnation) << 32) | (static_cast<uint64_t>(slot & 0xFF) << 24) |
         (qpn & kNumberMask);
}
constexpr uint32_t directory_slot(uint64_t word) {
  return static_cast<uint32_t>(word >> 24) & 0xFF;
}
constexpr uint32_t directory_incarnation(uint64_t word) {
  return static_cast<uint32_t>(word >> 32);
}
constexpr uint32_t directory_qpn(uint64_t word) {
  return static_cast<uint32_t>(word) & kNumberMask;
}
static_assert(kProcesses <= 256);

/** The part of a CQ that initiators see. Lives in its owner's chunk. */
struct CqShared {
  uint64_t owner;
  Word serial;  ///< number of the CQ in its process, never used again: part of the rings' names; 0:
                ///< destroyed (R22)
  uint32_t channel;  ///< wake FIFO of the owner, or kNoChannel
  uint32_t reserved;
  uint64_t reserved2[5];
  /** 0 not armed, else a number new at each arming; bit 0: solicited completions only (R7). */
  alignas(64) Word armed;
  alignas(64) Half high;  ///< directory entries below this have been used
  alignas(64) Word ready[kRingsPerCq / 64];
  Word directory[kRingsPerCq];  ///< directory_word()
};
static_assert(offsetof(CqShared, armed) == 64 && offsetof(CqShared, high) == 128);
static_assert(offsetof(CqShared, ready) == 192 && offsetof(CqShared, directory) == 320);

struct Sge {
  uint64_t address;
  uint32_t length;
  uint32_t lkey;
};

struct Wqe {
  uint32_t num_sge;
  uint32_t reserved[3];
  Sge sge[1];  // max_sge of them
};
constexpr size_t wqe_stride(uint32_t max_sge) { return 16 + 16 * static_cast<size_t>(max_sge); }

/** A QP that waits for a WQE of a receive queue. */
struct ParkEntry {
  Word who;   ///< owner word of the initiator, channel number in the top 16 bits; 0 free
  Word word;  ///< 0 not parked, else a number new at each parking (R10)
};
constexpr uint64_t park_who(uint64_t owner, uint32_t channel) {
  return owner | (static_cast<uint64_t>(channel & 0xFFFF) << 48);
}
constexpr uint64_t park_owner(uint64_t who) { return who & ((uint64_t{1} << 48) - 1); }
constexpr uint32_t park_channel(uint64_t who) { return static_cast<uint32_t>(who >> 48); }

/**
 * The part of a receive queue that initiators see, followed by its park entries, the state words
 * and the WQEs. The sizes don't change while it lives.
 */
struct QueueShared {
  uint64_t owner;
  QueueId id;
  uint32_t max_wr;
  uint32_t max_sge;
  uint32_t pd;     ///< keys in its WQEs are checked against it
  uint32_t parks;  ///< park entries: 0 to kParkEntries
  uint32_t reserved0;
  Ref cq;  ///< of an XRC SRQ: its completions go there
  uint64_t reserved[2];
  alignas(64) Half hint;  ///< where the next take looks first; only a hint
  alignas(64) Word
      posted;  ///< changes at each posting: who found nothing need not look again until it does
  alignas(64) Word parked[kParkEntries / 64];  ///< which park entries may be in use
};
static_assert(offsetof(QueueShared, hint) == 64 && offsetof(QueueShared, posted) == 128);
static_assert(offsetof(QueueShared, parked) == 192 && sizeof(QueueShared) == 256);

/** Where the parts of a receive queue of these sizes lie, in bytes from its start. */
struct QueueLayout {
  uint32_t max_wr, max_sge, parks;
  auto operator<=>(const QueueLayout&) const = default;
  constexpr size_t park() const { return sizeof(QueueShared); }
  constexpr size_t words() const { return align_up(park() + parks * sizeof(ParkEntry), 64); }
  constexpr size_t wqes() const { return align_up(words() + size_t{8} * max_wr, 64); }
  constexpr size_t bytes() const { return align_up(wqes() + wqe_stride(max_sge) * max_wr, 64); }
  /** The sizes are within the limits of this build (I9). */
  constexpr bool valid() const {
    return max_wr >= 1 && max_wr <= kMaxSrqWr && max_sge >= 1 && max_sge <= kMaxRecvSge &&
           parks <= kParkEntries;
  }
};

// ----------------------------------------------------------------------------------------------

/** Changes with the size, number or place of anything above (FNV-1a); its meaning is minor's. */
constexpr uint64_t layout_fingerprint() {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const uint64_t number : std::initializer_list<uint64_t>{kXrcdTable.offset,
                                                               kSrqTable.offset,
                                                               kQpTable.offset,
                                                               kHolderTable.offset,
                                                               kGroupTable.offset,
                                                               kFlowTable.offset,
                                                               kPortTable.offset,
                                                               kSpreadTable.offset,
                                                               kLockTable.offset,
                                                               kRootBytes,
                                                               sizeof(ProcessShared),
                                                               kMrs,
                                                               kBackings,
                                                               kPds,
                                                               sizeof(Entry),
                                                               sizeof(Ring),
                                                               sizeof(CqShared),
                                                               kRingsPerCq,
                                                               sizeof(QueueShared),
                                                               sizeof(ParkEntry),
                                                               kParkEntries,
                                                               sizeof(Wqe),
                                                               kUnit,
                                                               kChunkBytes})
    hash = (hash ^ number) * 0x100000001b3u;
  return hash;
}
inline constexpr uint64_t kLayoutFingerprint = layout_fingerprint();

}  // namespace millrace::soft
