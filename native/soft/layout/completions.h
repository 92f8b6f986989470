#pragma once

#include "soft/layout/queue.h"
#include "soft/layout/words.h"

/** Completion queues as initiators see them, and the rings that completions come in. */
namespace millrace::soft {

inline constexpr uint64_t kRingMagic = 0x31474E49524C494Dull;  // "MILRING1"
inline constexpr uint32_t kRingsPerCq = 1024;
inline constexpr uint32_t kMaxCqe = 65536;

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

}  // namespace millrace::soft
