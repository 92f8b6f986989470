#include "soft/import.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <mutex>

#include "soft/device.h"
#include "soft/error.h"
#include "soft/process.h"

namespace millrace::soft {
namespace {

constexpr uint64_t kTokenMagic = 0x314B4F54524C494Dull;  // "MILRTOK1"

struct Token {
  uint64_t magic = kTokenMagic;
  uint64_t owner = 0;
  uint64_t root_device = 0, root_inode = 0;  ///< which fabric
  uint32_t device = 0;
  uint32_t reserved = 0;
};

bool root_of(const Process& process, Token* token) {
  struct stat info;
  if (fstat(const_cast<Process&>(process).root().fd(), &info) != 0) return false;
  token->root_device = static_cast<uint64_t>(info.st_dev);
  token->root_inode = static_cast<uint64_t>(info.st_ino);
  return true;
}

std::nullptr_t refused(int code, std::string why) {
  return fail_null(code, "import a device", std::move(why));
}

}  // namespace

bool is_gone(Process& process, const PeerProcess& peer) {
  return peer.dead() || (peer.owner() != process.owner() &&
                         process.root().is_dead(peer.slot(), peer.incarnation()));
}

base::Result<base::Fd> make_device_token(const Process& process, uint32_t device) {
  const auto os_failure = [] {
    return base::Status::error(errno, "make the device's descriptor", strerror(errno));
  };
  base::Fd fd(memfd_create("millrace-device", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return os_failure();
  Token token;
  token.owner = process.owner();
  token.device = device;
  if (!root_of(process, &token) || write(fd.get(), &token, sizeof(token)) != sizeof(token) ||
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0) {
    return os_failure();
  }
  return fd;
}

ibv_context* import_device(int cmd_fd) {
  Token token, ours;
  const ssize_t n = pread(cmd_fd, &token, sizeof(token), 0);
  if (n < 0 && errno == EBADF) return refused(EBADF, "it is no open descriptor");
  if (n != sizeof(token) || token.magic != kTokenMagic || token.device >= kDevices)
    return refused(EPROTONOSUPPORT, "the descriptor is none of a software device");
  ibv_context* handle = open_device_number(token.device);
  if (handle == nullptr) return nullptr;
  Context& context = Context::of(handle);
  Process& process = *context.process;
  const auto undo = [&](int code, const char* why) {
    close_device(handle);
    return refused(code, why);
  };
  if (!root_of(process, &ours) || ours.root_device != token.root_device ||
      ours.root_inode != token.root_inode) {
    return undo(EINVAL, "its process is in another fabric (MILLRACE_SHM_DIR, MILLRACE_FABRIC)");
  }
  bool dead = false;
  {
    std::lock_guard registry(process.registry());
    auto peer = process.attach(owner_slot(token.owner), owner_incarnation(token.owner));
    dead = !peer.ok() || is_gone(process, *peer.value());
  }
  if (dead) return undo(ENODEV, "the process that it came from has ended");
  context.objects_owner = token.owner;
  context.imported_fd = base::Fd(cmd_fd);
  handle->cmd_fd = cmd_fd;
  return handle;
}

}  // namespace millrace::soft
