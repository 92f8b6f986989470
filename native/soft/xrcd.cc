#include "soft/xrcd.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include <memory>
#include <mutex>
#include <optional>

#include "soft/error.h"
#include "soft/fabric.h"
#include "soft/step.h"

namespace millrace::soft {
namespace {

/** Whether a living process has the domain open. A process that is dead but not reaped yet counts
 * for nothing. */
bool exists(Root& root, const XrcdKey& key) {
  for (uint32_t i = 0; i < root.xrcds(); ++i) {
    const XrcdRecord& record = root.xrcd(i);
    const uint64_t owner = record.owner.load(std::memory_order_acquire);
    if ((owner & kAnnounced) == 0) continue;
    const XrcdKey found = record.key;
    if (record.owner.load(std::memory_order_acquire) != owner || !(found == key)) continue;
    const uint64_t process = owner & ~kAnnounced;
    if (!root.is_dead(owner_slot(process), owner_incarnation(process))) return true;
  }
  return false;
}

}  // namespace

ibv_xrcd* open_xrcd(ibv_context* handle, ibv_xrcd_init_attr* attr) {
  if (forked()) return fail_null(EPERM, "open an XRC domain", "this process was forked");
  const uint32_t need = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  if ((attr->comp_mask & need) != need) {
    return fail_null(EINVAL, "open an XRC domain",
                     "comp_mask must name the descriptor and the open flags");
  }
  Context& context = Context::of(handle);
  Process& process = *context.process;
  Root& root = process.root();
  auto xrcd = std::make_unique<Xrcd>();
  xrcd->context = &context;
  xrcd->xrcd.context = handle;
  const bool create = (attr->oflags & O_CREAT) != 0;
  const bool exclusive = create && (attr->oflags & O_EXCL) != 0;
  if (attr->fd == -1) {
    if (!create)
      return fail_null(EINVAL, "open an XRC domain", "a private domain (fd -1) needs O_CREAT");
    // No inode has device ~0: a key that nobody else can name.
    xrcd->key = XrcdKey{
        ~uint64_t{0}, (static_cast<uint64_t>(process.incarnation()) << 32) | process.next_number()};
  } else {
    struct stat info;
    if (fstat(attr->fd, &info) != 0) {
      const int error = errno;
      return fail_null(error, "open an XRC domain",
                       base::format("descriptor %d: %s", attr->fd, strerror(error)));
    }
    xrcd->key = XrcdKey{static_cast<uint64_t>(info.st_dev), static_cast<uint64_t>(info.st_ino)};
  }

  // The folder's lock makes "is it there" and "now it is" one step, but only for those who ask.
  std::optional<FolderLock> lock;
  if (attr->fd != -1 && (!create || exclusive)) {
    base::Result<FolderLock> taken = FolderLock::take(root.path());
    if (!taken.ok()) return fail_null(taken.status());
    lock.emplace(taken.take());
    const bool there = exists(root, xrcd->key);
    if (!there && !create)
      return fail_null(EAGAIN, "open an XRC domain",
                       "nobody has it open, and O_CREAT was not given");
    if (there && exclusive)
      return fail_null(EINVAL, "open an XRC domain", "it is open already, and O_EXCL was given");
  }
  for (uint32_t i = 0; i < root.xrcds(); ++i) {
    XrcdRecord& record = root.xrcd(i);
    uint64_t expected = 0;
    if (record.owner.load(std::memory_order_relaxed) != 0 ||
        !record.owner.compare_exchange_strong(expected, process.owner())) {
      continue;
    }
    step("xrcd claimed");
    record.key = xrcd->key;
    record.owner.store(process.owner() | kAnnounced,
                       std::memory_order_release);  // pairs with exists()
    xrcd->record = i;
    context.objects.fetch_add(1, std::memory_order_relaxed);
    return &xrcd.release()->xrcd;
  }
  return fail_null(ENOMEM, "open an XRC domain",
                   base::format("all %u records of the fabric are in use", root.xrcds()));
}

int close_xrcd(ibv_xrcd* handle) {
  if (forked()) return fail(EPERM, "close an XRC domain", "this process was forked");
  Xrcd* xrcd = &Xrcd::of(handle);
  const uint32_t users = xrcd->users.load();
  if (users != 0)
    return fail(EBUSY, "close an XRC domain", base::format("%u SRQs and QPs are on it", users));
  xrcd->context->process->root().xrcd(xrcd->record).owner.store(0, std::memory_order_release);
  xrcd->context->objects.fetch_sub(1, std::memory_order_relaxed);
  delete xrcd;
  return 0;
}

}  // namespace millrace::soft
