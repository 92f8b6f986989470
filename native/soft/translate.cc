#include "soft/translate.h"

#include <string.h>

#include <atomic>
#include <mutex>

#include "soft/fabric.h"
#include "soft/import.h"

namespace millrace::soft {
namespace {

/** The table that a key leads to from `peer`: its own, or that of the process that the key names.
 */
std::shared_ptr<PeerProcess> maker_of(Process& process, const PeerProcess& peer, uint32_t key) {
  const uint32_t slot = key_slot(key);
  if (slot == peer.slot() || slot >= process.root().processes()) return nullptr;
  const uint64_t word = process.root().process(slot).state.load();
  if (static_cast<ProcessState>(word >> 32) != ProcessState::kLive) return nullptr;
  auto maker = process.attach(slot, static_cast<uint32_t>(word));
  return maker.ok() && !is_gone(process, *maker.value()) ? maker.take() : nullptr;
}

/** A region of another process whose key a program here uses as a local key. Takes the registry
 * mutex; not on the data path. */
std::byte* imported_address(Process& process, uint32_t pd, const ibv_sge& sge, uint32_t access) {
  std::lock_guard registry(process.registry());
  auto found = process.imported.find(sge.lkey);
  if (found == process.imported.end()) return nullptr;
  const Translation& region = *found->second;
  if (region.record->load(std::memory_order_acquire) != region.state || region.pd != pd ||
      region.maker->dead() || (region.access & access) != access ||
      !in_region(region.iova, region.length, sge.addr, sge.length)) {
    return nullptr;
  }
  return region.base + (sge.addr - region.iova);
}

}  // namespace

std::byte* local_address(Process& process, uint32_t pd, const ibv_sge& sge, uint32_t access) {
  if (__builtin_expect(key_slot(sge.lkey) != process.slot(), 0))
    return imported_address(process, pd, sge, access);
  const MrRecord& record = process.shared().mrs[key_index(sge.lkey)];
  const uint64_t state = record.state.load(std::memory_order_acquire);  // pairs with reg_mr
  if (state == 0 || (state & 0xFF) != (sge.lkey & 0xFF)) return nullptr;
  if (record.kind != MrKind::kRegion || record.pd != pd || (record.access & access) != access ||
      !in_region(record.iova, record.length, sge.addr, sge.length)) {
    return nullptr;
  }
  return reinterpret_cast<std::byte*>(record.address + (sge.addr - record.iova));
}

bool translate(Process& process, PeerProcess& peer, uint32_t key, Translation* out) {
  out->record = nullptr;
  out->map.reset();
  out->maker = maker_of(process, peer, key);
  if (out->maker == nullptr && key_slot(key) != peer.slot()) return false;
  PeerProcess& maker = out->maker != nullptr ? *out->maker : peer;
  base::Result<ProcessShared*> shared = maker.shared();
  if (!shared.ok()) return false;
  const MrRecord& record = shared.value()->mrs[key_index(key)];
  const uint64_t state = record.state.load(std::memory_order_acquire);
  if (state == 0 || (state & 0xFF) != (key & 0xFF)) return false;
  // A private copy, valid if the record is still the same afterwards (I9, R34).
  out->key = key;
  out->state = state;
  out->iova = record.iova;
  out->length = record.length;
  out->address = record.address;
  out->access = record.access;
  out->pd = record.pd;
  out->kind = record.kind;
  out->qp = record.qp;
  out->base = nullptr;
  const uint32_t backing_index = record.backing;
  const uint64_t offset = record.file_offset;
  std::atomic_thread_fence(std::memory_order_acquire);
  if (record.state.load(std::memory_order_acquire) != state) return false;

  if (maker.owner() == process.owner()) {
    out->base = reinterpret_cast<std::byte*>(out->address);  // our own memory
  } else if (backing_index < kBackings) {
    const Backing& backing = shared.value()->backings[backing_index];
    char path[kBackingPath];
    memcpy(path, backing.path, sizeof(path));
    path[sizeof(path) - 1] = '\0';
    const XrcdKey file = {backing.device, backing.inode};
    out->map = process.map_backing(file, path, offset + out->length);
    if (out->map != nullptr) out->base = out->map->data() + offset;
    // else: not reachable by name from here (another mount namespace); process_vm_* may still work
  }
  out->backed = backing_index < kBackings;
  if (out->base == nullptr && out->maker != nullptr) return false;
  out->record = &record.state;
  return true;
}

}  // namespace millrace::soft
