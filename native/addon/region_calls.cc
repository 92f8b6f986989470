#include <errno.h>

#include <limits>

#include "addon/arguments.h"
#include "addon/calls.h"
#include "addon/errors.h"
#include "transport/shared_region.h"

namespace millrace::addon {
namespace {

Napi::Value failed(Arguments& arguments, const base::Status& status) {
  throw_status(arguments.env(), status);
  return {};
}

Napi::Value opened(Arguments& arguments, OpenMember& member,
                   base::Result<std::unique_ptr<transport::SharedRegion>> region) {
  if (!region.ok()) return failed(arguments, region.status());
  const transport::SharedRegion& made = *region.value();
  Napi::Object result = Napi::Object::New(arguments.env());
  const auto handle = made.handle();
  result.Set("handle", handle.ok() ? handle.value() : "");
  result.Set("bytes", static_cast<double>(made.bytes().size()));
  result.Set("address",
             Napi::BigInt::New(arguments.env(), reinterpret_cast<uint64_t>(made.bytes().data())));
  result.Set("rkey", made.mr()->rkey);
  result.Set("region", member.regions.add(region.take()));
  return result;
}

/** The second argument as a region of the member; null when it is closed, with an exception. */
transport::SharedRegion* region_of(Arguments& arguments, OpenMember* member, int32_t* number) {
  *number =
      static_cast<int32_t>(arguments.integer(1, "region", 0, std::numeric_limits<int32_t>::max()));
  if (!arguments.ok()) return nullptr;
  transport::SharedRegion* region = member->regions.find(*number);
  if (region == nullptr) throw_closed(arguments.env(), arguments.call());
  return region;
}

}  // namespace

Napi::Value create_region(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "createRegion");
  OpenMember* member = arguments.member();
  const Napi::Object object = arguments.object(1, "options");
  if (!arguments.ok()) return {};
  transport::SharedRegionOptions options;
  options.pages.bytes = static_cast<size_t>(arguments.integer(object, "bytes", 1, kMaxSafeInteger));
  options.pages.mode = static_cast<mode_t>(arguments.integer(object, "mode", 0, 0777));
  options.pages.huge_pages = arguments.integer(object, "hugePages", 0, 1) != 0;
  if (!arguments.ok()) return {};
  auto made = transport::SharedRegion::create(member->member->pd(), options);
  // What the system lacks may be lying idle in the member's pool.
  transport::Pool* const pool = member->lending.open_pool();
  if (!made.ok() && made.status().code == ENOSPC && pool != nullptr && pool->drop_idle())
    made = transport::SharedRegion::create(member->member->pd(), options);
  return opened(arguments, *member, std::move(made));
}

Napi::Value open_region(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "openRegion");
  OpenMember* member = arguments.member();
  const std::string handle = arguments.text(1, "handle");
  const bool write = arguments.boolean(2, "write");
  if (!arguments.ok()) return {};
  uint64_t address = 0;
  if (!info[3].IsUndefined()) {
    bool exact = false;
    if (info[3].IsBigInt()) address = info[3].As<Napi::BigInt>().Uint64Value(&exact);
    if (!exact) {
      throw_type(info.Env(), arguments.call(), "address", "a BigInt of 64 bits");
      return {};
    }
  }
  const int access = IBV_ACCESS_REMOTE_READ | (write ? IBV_ACCESS_LOCAL_WRITE : 0);
  return opened(arguments, *member,
                transport::SharedRegion::open(member->member->pd(), handle, access,
                                              reinterpret_cast<void*>(address)));
}

Napi::Value region_buffer(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "regionBuffer");
  OpenMember* member = arguments.member();
  int32_t number = 0;
  if (region_of(arguments, member, &number) == nullptr) return {};
  return {info.Env(), member->regions.buffer(info.Env(), number)};
}

Napi::Value region_state(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "regionState");
  OpenMember* member = arguments.member();
  int32_t number = 0;
  const transport::SharedRegion* region = region_of(arguments, member, &number);
  if (region == nullptr) return {};
  Napi::Object result = Napi::Object::New(info.Env());
  result.Set("populated", region->populated());
  result.Set("hugeBytes", static_cast<double>(transport::huge_bytes(region->bytes())));
  result.Set("note", region->huge_pages_note());
  return result;
}

Napi::Value close_region(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "closeRegion");
  const auto handle = static_cast<int32_t>(arguments.integer(0, "handle", INT32_MIN, INT32_MAX));
  const auto number =
      static_cast<int32_t>(arguments.integer(1, "region", 0, std::numeric_limits<int32_t>::max()));
  if (!arguments.ok()) return {};
  // A closed member has closed its regions.
  OpenMember* const member = arguments.environment().find<OpenMember>(handle);
  return Napi::Number::New(info.Env(),
                           member == nullptr ? 0 : member->regions.close(info.Env(), number));
}

Napi::Value is_elsewhere(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "isElsewhere");
  OpenMember* member = arguments.member();
  const auto peer =
      static_cast<uint32_t>(arguments.integer(1, "peer", 0, std::numeric_limits<uint32_t>::max()));
  if (!arguments.ok()) return {};
  return Napi::Boolean::New(info.Env(), member->member->elsewhere(peer));
}

Napi::Value fetch(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "fetch");
  OpenMember* member = arguments.member();
  const auto peer =
      static_cast<uint32_t>(arguments.integer(1, "peer", 0, std::numeric_limits<uint32_t>::max()));
  const Napi::Object from = arguments.object(2, "from");
  transport::RemoteMemory remote;
  if (arguments.ok()) {
    remote.bytes = static_cast<uint64_t>(arguments.integer(from, "bytes", 1, kMaxSafeInteger));
    remote.rkey = static_cast<uint32_t>(
        arguments.integer(from, "rkey", 0, std::numeric_limits<uint32_t>::max()));
    remote.address = static_cast<uint64_t>(arguments.integer(from, "address", 1, kMaxSafeInteger));
  }
  const auto number =
      static_cast<int32_t>(arguments.integer(3, "region", 0, std::numeric_limits<int32_t>::max()));
  const auto offset = static_cast<uint64_t>(arguments.integer(4, "offset", 0, kMaxSafeInteger));
  if (!arguments.ok()) return {};
  const transport::SharedRegion* const region = member->regions.find(number);
  if (region == nullptr) {
    throw_closed(info.Env(), arguments.call());
    return {};
  }
  const uint64_t room = region->bytes().size();
  if (!region->writable() || offset > room || remote.bytes > room - offset) {
    return failed(
        arguments,
        base::Status::error(EINVAL, "fetch", "the region is not open for writing, or too small"));
  }
  const auto started =
      member->member->fetch(peer, remote, region->bytes().data() + offset, region->mr()->lkey);
  if (!started.ok()) return failed(arguments, started.status());
  return Napi::Number::New(info.Env(), started.value());
}

Napi::Value cancel_fetch(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "cancelFetch");
  OpenMember* member = arguments.member();
  const auto number = static_cast<uint32_t>(
      arguments.integer(1, "number", 0, std::numeric_limits<uint32_t>::max()));
  if (!arguments.ok()) return {};
  member->member->cancel_fetch(number);
  return info.Env().Undefined();
}

Napi::Value inspect_region(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "inspectRegion");
  const std::string handle = arguments.text(0, "handle");
  if (!arguments.ok()) return {};
  const auto found = transport::inspect_region(handle);
  if (!found.ok()) return failed(arguments, found.status());
  Napi::Object result = Napi::Object::New(info.Env());
  result.Set("mode", static_cast<double>(found.value().mode));
  result.Set("user", static_cast<double>(found.value().user));
  result.Set("group", static_cast<double>(found.value().group));
  result.Set("bytes", static_cast<double>(found.value().bytes));
  return result;
}

Napi::Value sweep_regions(const Napi::CallbackInfo& info) {
  const transport::SweptRegions swept = transport::sweep_regions();
  Napi::Object result = Napi::Object::New(info.Env());
  result.Set("regions", swept.regions);
  result.Set("bytes", static_cast<double>(swept.bytes));
  return result;
}

}  // namespace millrace::addon
