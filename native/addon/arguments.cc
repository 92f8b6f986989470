#include "addon/arguments.h"

#include <cmath>

#include "addon/errors.h"

namespace millrace::addon {

void Arguments::wrong_type(const char* name, const char* wanted) {
  ok_ = false;
  throw_type(env(), call_, name, wanted);
}

void Arguments::wrong_range(const char* name, double least, double most) {
  ok_ = false;
  throw_range(env(), call_, name, base::format("from %.17g to %.17g", least, most));
}

void Arguments::closed() {
  ok_ = false;
  throw_closed(env(), call_);
}

int64_t Arguments::to_integer(Napi::Value value, const char* name, int64_t least, int64_t most) {
  if (!ok_) return least;
  if (!value.IsNumber()) {
    wrong_type(name, "an integer");
    return least;
  }
  const double number = value.As<Napi::Number>().DoubleValue();
  if (std::trunc(number) != number) {  // NaN too
    wrong_type(name, "an integer");
    return least;
  }
  if (number < static_cast<double>(least) || number > static_cast<double>(most)) {
    wrong_range(name, static_cast<double>(least), static_cast<double>(most));
    return least;
  }
  return static_cast<int64_t>(number);
}

std::string Arguments::to_text(Napi::Value value, const char* name) {
  if (!ok_) return {};
  if (!value.IsString()) {
    wrong_type(name, "a string");
    return {};
  }
  std::string text = value.As<Napi::String>().Utf8Value();
  if (text.find('\0') != std::string::npos) {
    wrong_type(name, "a string without null bytes");
    return {};
  }
  return text;
}

int64_t Arguments::integer(size_t index, const char* name, int64_t least, int64_t most) {
  return to_integer(info_[index], name, least, most);
}

std::string Arguments::text(size_t index, const char* name) { return to_text(info_[index], name); }

bool Arguments::boolean(size_t index, const char* name) {
  if (!ok_) return false;
  const Napi::Value value = info_[index];
  if (!value.IsBoolean()) {
    wrong_type(name, "a boolean");
    return false;
  }
  return value.As<Napi::Boolean>().Value();
}

std::span<uint8_t> Arguments::bytes(size_t index, const char* name) {
  if (!ok_) return {};
  const Napi::Value value = info_[index];
  if (!value.IsTypedArray() || value.As<Napi::TypedArray>().TypedArrayType() != napi_uint8_array) {
    wrong_type(name, "a Uint8Array");
    return {};
  }
  auto array = value.As<Napi::Uint8Array>();
  return {array.Data(), array.ElementLength()};
}

Napi::Function Arguments::function(size_t index, const char* name) {
  if (!ok_) return {};
  const Napi::Value value = info_[index];
  if (!value.IsFunction()) {
    wrong_type(name, "a function");
    return {};
  }
  return value.As<Napi::Function>();
}

Napi::Object Arguments::object(size_t index, const char* name) {
  if (!ok_) return {};
  const Napi::Value value = info_[index];
  if (!value.IsObject()) {
    wrong_type(name, "an object");
    return {};
  }
  return value.As<Napi::Object>();
}

bool Arguments::get(const Napi::Object& object, const char* name, Napi::Value& value) {
  if (!ok_) return false;
  napi_value result = nullptr;
  if (napi_get_named_property(env(), object, name, &result) != napi_ok) {
    ok_ = false;  // a getter threw; its exception is pending
    return false;
  }
  value = Napi::Value(env(), result);
  return true;
}

std::string Arguments::text(const Napi::Object& object, const char* name) {
  Napi::Value value;
  return get(object, name, value) ? to_text(value, name) : std::string();
}

int64_t Arguments::integer(const Napi::Object& object, const char* name, int64_t least,
                           int64_t most) {
  Napi::Value value;
  return get(object, name, value) ? to_integer(value, name, least, most) : least;
}

double Arguments::number(const Napi::Object& object, const char* name, double least, double most,
                         double otherwise) {
  Napi::Value value;
  if (!get(object, name, value) || value.IsUndefined()) return otherwise;
  if (!value.IsNumber()) {
    wrong_type(name, "a number");
    return otherwise;
  }
  const double number = value.As<Napi::Number>().DoubleValue();
  if (!(number >= least && number <= most)) {
    wrong_range(name, least, most);
    return otherwise;
  }
  return number;
}

Napi::Object Arguments::optional_object(const Napi::Object& object, const char* name) {
  Napi::Value value;
  if (!get(object, name, value) || value.IsUndefined()) return {};
  if (!value.IsObject()) {
    wrong_type(name, "an object");
    return {};
  }
  return value.As<Napi::Object>();
}

}  // namespace millrace::addon
