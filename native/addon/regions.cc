#include "addon/regions.h"

#include <errno.h>

#include <utility>

#include "addon/errors.h"

namespace millrace::addon {

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
  const std::span<std::byte> bytes = open.region->bytes();
  auto* const owner = new std::shared_ptr<base::Mapping>(open.region->mapping());
  const auto release = [](napi_env, void*, void* hint) {
    delete static_cast<std::shared_ptr<base::Mapping>*>(hint);
  };
  const napi_status status =
      napi_create_external_arraybuffer(env, bytes.data(), bytes.size(), release, owner, &buffer);
  if (status != napi_ok) {
    delete owner;
    return throw_status(env, base::Status::error(EOPNOTSUPP, "show a region's bytes",
                                                 "this host refuses memory that is not its own"));
  }
  napi_create_reference(env, buffer, 1, &open.buffer);
  return buffer;
}

void Regions::detach(napi_env env, Open& open) {
  if (open.buffer == nullptr) return;
  napi_handle_scope scope;
  if (napi_open_handle_scope(env, &scope) != napi_ok) return;
  napi_value buffer = nullptr;
  if (napi_get_reference_value(env, open.buffer, &buffer) == napi_ok && buffer != nullptr)
    (void)napi_detach_arraybuffer(env, buffer);  // refused if it is detached already
  napi_delete_reference(env, std::exchange(open.buffer, nullptr));
  napi_close_handle_scope(env, scope);
}

void Regions::close(napi_env env, int32_t number) {
  const auto found = open_.find(number);
  if (found == open_.end()) return;
  detach(env, found->second);
  open_.erase(found);
}

void Regions::close_all(napi_env env) {
  for (auto& [number, open] : open_) detach(env, open);
  open_.clear();
}

}  // namespace millrace::addon
