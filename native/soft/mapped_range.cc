#include "soft/mapped_range.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cstdio>
#include <cstdlib>

#include "soft/layout/process.h"

namespace millrace::soft {
namespace {

/** One line of /proc/self/maps. */
struct MapsLine {
  unsigned long long start = 0, end = 0, offset = 0, inode = 0;
  unsigned major = 0, minor = 0;
  char flags[8] = {};
  const char* path = "";
};

bool parse_line(const char* line, MapsLine* out) {
  int path_at = 0;
  if (sscanf(line, "%llx-%llx %7s %llx %x:%x %llu %n", &out->start, &out->end, out->flags,
             &out->offset, &out->major, &out->minor, &out->inode, &path_at) < 7) {
    return false;
  }
  out->path = path_at == 0 ? "" : line + path_at;
  return true;
}

/** The file of a shared, writable mapping; false if others can't open it by name. */
bool file_of(const MapsLine& line, uint64_t address, MappedFile* out) {
  if (line.flags[3] != 's' || line.flags[1] != 'w' || line.inode == 0) return false;
  std::string path = line.path;
  while (!path.empty() && path.back() == '\n') path.pop_back();
  // A name that the kernel had to escape, or no name in the filesystem any more.
  if (path.empty() || path[0] != '/' || path.find('\\') != std::string::npos ||
      path.size() >= kBackingPath)
    return false;
  struct stat info;
  if (stat(path.c_str(), &info) != 0 || info.st_ino != line.inode ||
      info.st_dev != makedev(line.major, line.minor))
    return false;
  out->path = path;
  out->device = static_cast<uint64_t>(info.st_dev);
  out->inode = line.inode;
  out->offset = line.offset + (address - line.start);
  return true;
}

}  // namespace

MappedRange inspect(uint64_t address, uint64_t length) {
  MappedRange range;
  FILE* maps = fopen("/proc/self/maps", "re");
  if (maps == nullptr) {
    range.readable = range.writable = true;  // can't be told: the first access will
    return range;
  }
  char* text = nullptr;
  size_t room = 0;
  uint64_t at = address;
  const uint64_t end = address + length;
  bool all_readable = true, all_writable = true;
  while (at < end && getline(&text, &room, maps) > 0) {
    MapsLine line;
    if (!parse_line(text, &line) || line.end <= at) continue;
    if (line.start > at) break;  // a hole
    all_readable &= line.flags[0] == 'r';
    all_writable &= line.flags[1] == 'w';
    if (at == address && end <= line.end) range.mapped_file = file_of(line, address, &range.file);
    at = line.end;
  }
  free(text);
  fclose(maps);
  range.readable = at >= end && all_readable;
  range.writable = at >= end && all_writable;
  return range;
}

}  // namespace millrace::soft
