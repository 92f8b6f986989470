#include "dropin/sysfs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/files.h"

namespace millrace::dropin {
namespace {

/** What a software device's file says; null if it has no such file. */
const char* soft_file(const char* folder, const char* name) {
  const char* device = strrchr(folder, '/');
  if (device == nullptr || strncmp(device, "/soft", 5) != 0) return nullptr;
  if (strcmp(name, "board_id") == 0) return "millrace-soft";
  if (strcmp(name, "fw_ver") == 0) return "1.0";
  if (strcmp(name, "hca_type") == 0) return "millrace";
  if (strcmp(name, "node_type") == 0) return "1: CA";
  return nullptr;
}

}  // namespace

int read_sysfs(const char* folder, const char* name, char* text, size_t size) {
  if (size == 0) {
    errno = EINVAL;
    return -1;
  }
  if (const char* known = soft_file(folder, name)) {
    snprintf(text, size, "%s", known);
    return static_cast<int>(strlen(text));
  }
  char path[4096];
  if (snprintf(path, sizeof(path), "%s/%s", folder, name) >= static_cast<int>(sizeof(path))) {
    errno = ENAMETOOLONG;
    return -1;
  }
  const base::Fd fd(open(path, O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return -1;
  ssize_t length = read(fd.get(), text, size);
  if (length < 0) return -1;
  if (length > 0 && text[length - 1] == '\n') --length;
  if (static_cast<size_t>(length) < size) text[length] = '\0';
  return static_cast<int>(length);
}

}  // namespace millrace::dropin
