#include "addon/regions.h"

#include <errno.h>

#include <utility>

#include "addon/errors.h"
#include "addon/shared_buffers.h"
#include "transport/stray.h"

namespace millrace::addon {
namespace {

/** What an ArrayBuffer keeps until V8 has let go of it. */
struct Memory {
  std::shared_ptr<base::Mapping> mapping;
  bool watched = false;  ///< writes to it are caught

  ~Memory() {
    if (watched) transport::unwatch_strays(mapping->data());
  }
};

}  // namespace

int32_t Regions::add(std::unique_ptr<transport::SharedRegion> region) {
  open_.emplace(++last_, Open{std::move(region)});
  return last_;
}

transport::SharedRegion* Regions::find(int32_t number) const {
  const auto found = open_.find(number);
  return found == open_.end() ? nullptr : found->second.region.get();
}

napi_value Regions::buffer(napi_env env, int32_t number) {
  Open& open = open_.at(number);
  napi_value buffer = nullptr;
  if (open.buffer != nullptr) {
    napi_get_reference_value(env, open.buffer, &buffer);
    return buffer;
  }
  const auto refused = [env] {
    return throw_status(env, base::Status::error(EOPNOTSUPP, "show a region's bytes",
                                                 "this host refuses memory that is not its own"));
  };
  if (!external_buffers_allowed()) return refused();
  const std::span<std::byte> bytes = open.region->bytes();
  auto* const owner = new Memory{open.region->mapping()};
  if (!open.region->writable())
    owner->watched = transport::watch_strays(bytes.data(), owner->mapping->size());
  const auto release = [](napi_env, void*, void* hint) { delete static_cast<Memory*>(hint); };
  const napi_status status =
      napi_create_external_arraybuffer(env, bytes.data(), bytes.size(), release, owner, &buffer);
  if (status != napi_ok) {
    delete owner;
    return refused();
  }
  napi_create_reference(env, buffer, 1, &open.buffer);
  return buffer;
}

uint32_t Regions::detach(napi_env env, Open& open) {
  if (open.buffer == nullptr) return 0;
  napi_handle_scope scope;
  if (napi_open_handle_scope(env, &scope) != napi_ok) return 0;
  const transport::SharedRegion& region = *open.region;
  const uint32_t strays = region.writable()
                              ? 0
                              : transport::restore_strays(region.bytes().data(),
                                                          region.mapping()->size(), region.fd(), 0);
  napi_value buffer = nullptr;
  if (napi_get_reference_value(env, open.buffer, &buffer) == napi_ok && buffer != nullptr)
    (void)napi_detach_arraybuffer(env, buffer);  // refused if it is detached already
  napi_delete_reference(env, std::exchange(open.buffer, nullptr));
  napi_close_handle_scope(env, scope);
  return strays;
}

uint32_t Regions::close(napi_env env, int32_t number) {
  const auto found = open_.find(number);
  if (found == open_.end()) return 0;
  const uint32_t strays = detach(env, found->second);
  open_.erase(found);
  return strays;
}

void Regions::close_all(napi_env env) {
  for (auto& [number, open] : open_) (void)detach(env, open);
  open_.clear();
}

}  // namespace millrace::addon
