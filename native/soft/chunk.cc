#include "soft/chunk.h"

#include <unistd.h>

#include <algorithm>

#include "soft/fabric.h"
#include "soft/step.h"

namespace millrace::soft {

base::Result<Chunks> Chunks::create(int folder, const std::string& path, uint32_t slot,
                                    uint32_t incarnation) {
  Chunks chunks;
  chunks.folder_ = folder;
  chunks.path_ = path;
  chunks.slot_ = slot;
  chunks.incarnation_ = incarnation;
  base::Status status = chunks.add(kChunkBytes);
  if (!status.ok()) return status;
  chunks.process_ = reinterpret_cast<ProcessShared*>(chunks.maps_[0].data());
  chunks.used_[0] = align_up(sizeof(ProcessShared), kUnit);
  static_assert(sizeof(ProcessShared) < kChunkBytes * 3 / 4, "chunk 0 must have room for objects");
  return chunks;
}

base::Status Chunks::add(size_t bytes) {
  const std::string name = chunk_name(slot_, incarnation_, static_cast<uint32_t>(maps_.size()));
  base::Result<base::Fd> fd = base::create_reserved(folder_, name, bytes);
  if (!fd.ok()) {
    base::Status status = fd.status();
    status.detail = "in " + path_ + ": " + status.detail;
    return status;
  }
  step("chunk reserved");
  base::Result<base::Mapping> map = base::map_shared(fd.value().get(), bytes);
  if (!map.ok()) {
    unlinkat(folder_, name.c_str(), 0);
    return map.status();
  }
  maps_.push_back(map.take());
  used_.push_back(0);
  return base::Status::success();
}

base::Result<Block> Chunks::allocate(const BlockShape& shape, size_t bytes, bool* recycled) {
  bytes = align_up(bytes, kUnit);
  *recycled = false;
  auto& spare = free_[shape];
  if (!spare.empty()) {
    const Ref ref = spare.back();
    spare.pop_back();
    *recycled = true;
    return Block{resolve(ref), ref};
  }
  size_t chunk = 0;
  while (chunk < maps_.size() && maps_[chunk].size() - used_[chunk] < bytes) ++chunk;
  if (chunk == maps_.size()) {
    base::Status status = add(std::max(kChunkBytes, align_up(bytes, kChunkBytes)));
    if (!status.ok()) return status;
  }
  Ref ref;
  ref.chunk = static_cast<uint32_t>(chunk);
  ref.unit = static_cast<uint32_t>(used_[chunk] / kUnit);
  ref.bytes = static_cast<uint32_t>(bytes);
  used_[chunk] += bytes;
  return Block{resolve(ref), ref};
}

void Chunks::free(const BlockShape& shape, const Ref& ref) { free_[shape].push_back(ref); }

size_t Chunks::bytes() const {
  size_t sum = 0;
  for (const base::Mapping& map : maps_) sum += map.size();
  return sum;
}

void* Chunks::resolve(const Ref& ref) const {
  if (ref.chunk >= maps_.size()) return nullptr;
  const base::Mapping& map = maps_[ref.chunk];
  const size_t offset = size_t{ref.unit} * kUnit;
  return offset <= map.size() && ref.bytes <= map.size() - offset ? map.data() + offset : nullptr;
}

}  // namespace millrace::soft
