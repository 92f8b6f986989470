#pragma once

#include <infiniband/verbs.h>

#include <utility>

namespace millrace::verbs {

/**
 * Owner of one verbs object: destroys it when it goes out of scope. Declare owners in creation
 * order, so that destruction runs in reverse and nothing is EBUSY. Move only. `close()` destroys
 * now and tells the errno (0 on success); after a failure (EBUSY) the owner still holds the object.
 */
template <class T, int (*Destroy)(T*)>
class Owner {
 public:
  Owner() = default;
  explicit Owner(T* object) : object_(object) {}
  Owner(Owner&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Owner& operator=(Owner&& other) noexcept {
    if (this != &other) {
      (void)close();
      object_ = std::exchange(other.object_, nullptr);
    }
    return *this;
  }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;
  ~Owner() { (void)close(); }

  T* get() const { return object_; }
  T* operator->() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }
  /** Gives the object to the caller, who must destroy it. */
  T* release() { return std::exchange(object_, nullptr); }
  /** Destroys now; 0 or the errno value of the destroy call. Idempotent. */
  int close() {
    if (object_ == nullptr) return 0;
    const int error = Destroy(object_);
    if (error == 0) object_ = nullptr;
    return error;
  }

 private:
  T* object_ = nullptr;
};

/** ibv_close_xrcd with external linkage (verbs.h has it as a static inline, which can't name a
 * type). */
inline int close_xrcd(ibv_xrcd* xrcd) { return ibv_close_xrcd(xrcd); }

using ContextPtr = Owner<ibv_context, ibv_close_device>;
using PdPtr = Owner<ibv_pd, ibv_dealloc_pd>;
using MrPtr = Owner<ibv_mr, ibv_dereg_mr>;
using ChannelPtr = Owner<ibv_comp_channel, ibv_destroy_comp_channel>;
using CqPtr = Owner<ibv_cq, ibv_destroy_cq>;
using SrqPtr = Owner<ibv_srq, ibv_destroy_srq>;
using QpPtr = Owner<ibv_qp, ibv_destroy_qp>;
using AhPtr = Owner<ibv_ah, ibv_destroy_ah>;
using XrcdPtr = Owner<ibv_xrcd, close_xrcd>;

}  // namespace millrace::verbs
