#include <limits>

#include "addon/arguments.h"
#include "addon/calls.h"
#include "addon/errors.h"
#include "addon/presence.h"
#include "soft/provider.h"
#include "verbs/probe.h"

namespace millrace::addon {

Napi::Value lock_presence(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "lockPresence");
  const std::string path = arguments.text(0, "path");
  if (!arguments.ok()) return {};
  const base::Result<int> fd = take_presence(path);
  if (!fd.ok()) {
    throw_status(info.Env(), fd.status());
    return {};
  }
  return Napi::Number::New(info.Env(), arguments.environment().add_presence(fd.value()));
}

Napi::Value is_present(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "isPresent");
  const std::string path = arguments.text(0, "path");
  if (!arguments.ok()) return {};
  return Napi::Boolean::New(info.Env(), is_present(path));
}

Napi::Value unlock_presence(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "unlockPresence");
  const auto token = static_cast<int32_t>(arguments.integer(0, "token", INT32_MIN, INT32_MAX));
  if (!arguments.ok()) return {};
  arguments.environment().remove_presence(token);
  return info.Env().Undefined();
}

Napi::Value memlock_limit(const Napi::CallbackInfo& info) {
  const uint64_t limit = verbs::memlock_limit();
  return Napi::Number::New(info.Env(), limit == ~uint64_t{0}
                                           ? std::numeric_limits<double>::infinity()
                                           : static_cast<double>(limit));
}

Napi::Value clean_fabric(const Napi::CallbackInfo& info) {
  const base::Result<soft::CleanReport> report = soft::clean_fabric();
  if (!report.ok()) {
    throw_status(info.Env(), report.status());
    return {};
  }
  Napi::Object result = Napi::Object::New(info.Env());
  result.Set("reaped", report.value().reaped);
  result.Set("bytes", static_cast<double>(report.value().bytes));
  return result;
}

}  // namespace millrace::addon
