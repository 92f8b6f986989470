#pragma once

#include <errno.h>
#include <fcntl.h>
#include <fuzzer/FuzzedDataProvider.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/files.h"
#include "soft/fabric.h"
#include "soft/layout.h"

// What the fuzz programs of shared memory have in common: a fabric of their own, its files mapped a
// second time, and what somebody else may write there.

namespace millrace::fuzz {

using Bytes = std::span<std::byte>;

[[noreturn]] inline void die(const char* what) {
  fprintf(stderr, "%s (errno %d)\n", what, errno);
  abort();
}
template <class T>
T must(T value, const char* what) {
  if (!value) die(what);
  return value;
}
inline void must_be_zero(int error, const char* what) {
  if (error != 0) die(what);
}

inline base::Mapping map_file(const std::string& path) {
  const base::Fd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat info = {};
  if (!fd.valid() || fstat(fd.get(), &info) != 0) die(path.c_str());
  auto map = base::map_shared(fd.get(), static_cast<size_t>(info.st_size));
  if (!map.ok()) die(path.c_str());
  return map.take();
}

/** The bytes of an object in shared memory. */
template <class T>
Bytes bytes_of(const T& what) {
  return {reinterpret_cast<std::byte*>(const_cast<T*>(&what)), sizeof(T)};
}

/** One word of one of the parts becomes something else: any value, one near by, or one bit. */
inline void scribble(FuzzedDataProvider& input, const std::vector<Bytes>& parts) {
  const Bytes part = parts[input.ConsumeIntegralInRange<size_t>(0, parts.size() - 1)];
  const size_t width = size_t{1} << input.ConsumeIntegralInRange<int>(0, 3);
  if (part.size() < width) return;
  const size_t at = input.ConsumeIntegralInRange<size_t>(0, part.size() / width - 1) * width;
  uint64_t value = 0;
  memcpy(&value, part.data() + at, width);
  switch (input.ConsumeIntegralInRange<int>(0, 3)) {
    case 0:
      value = input.ConsumeIntegral<uint64_t>();
      break;
    case 1:
      value += static_cast<uint64_t>(input.ConsumeIntegral<int8_t>());
      break;
    case 2:
      value ^= uint64_t{1} << input.ConsumeIntegralInRange<int>(0, 63);
      break;
    default:
      value = input.ConsumeBool() ? 0 : ~uint64_t{0};
  }
  memcpy(part.data() + at, &value, width);
}

/** A folder of its own with a fabric that nobody else knows, for this process and its children. */
class OwnFabric {
 public:
  OwnFabric() {
    const char* const given = getenv("MILLRACE_SHM_DIR");
    std::string name = given != nullptr && *given != '\0' ? given : "/dev/shm";
    name += "/millrace-fuzz.XXXXXX";
    base_ = must(mkdtemp(name.data()), "make a folder");
    setenv("MILLRACE_SHM_DIR", base_.c_str(), 1);
    setenv("MILLRACE_FABRIC", "fuzz", 1);
    folder_ = soft::FabricPath::from_environment().value().folder;
  }
  ~OwnFabric() { std::filesystem::remove_all(base_); }
  OwnFabric(const OwnFabric&) = delete;

  const std::string& base() const { return base_; }
  const std::string& folder() const { return folder_; }

 private:
  std::string base_, folder_;
};

/** The tables of a fabric's root file. */
class RootView {
 public:
  void open(const std::string& folder) {
    if (map_.size() == 0) map_ = map_file(folder + "/" + soft::kRootName);
  }
  template <class T>
  T& at(const soft::Table<T>& table, uint32_t index) {
    return *reinterpret_cast<T*>(map_.data() + table.offset + sizeof(T) * index);
  }
  /** The first `count` records of a table. */
  template <class T>
  Bytes first(const soft::Table<T>& table, uint32_t count) {
    return {map_.data() + table.offset, sizeof(T) * count};
  }
  soft::QpRecord& qp(uint32_t number) { return at(soft::kQpTable, number % soft::kQps); }
  soft::SrqRecord& srq(uint32_t number) { return at(soft::kSrqTable, number % soft::kSrqs); }
  soft::RootHeader& header() { return *reinterpret_cast<soft::RootHeader*>(map_.data()); }
  /** All tables but that of the flow rules, most of which has no memory. */
  Bytes tables() { return {map_.data(), soft::kFlowTable.offset}; }

 private:
  base::Mapping map_;
};

/** Parts of memory and how they were. */
class Snapshot {
 public:
  void add(Bytes part) { parts_.push_back({part, {part.begin(), part.end()}}); }
  void restore() const {
    for (const auto& [part, content] : parts_) memcpy(part.data(), content.data(), part.size());
  }
  void clear() { parts_.clear(); }

 private:
  std::vector<std::pair<Bytes, std::vector<std::byte>>> parts_;
};

}  // namespace millrace::fuzz
