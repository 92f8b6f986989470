#include "soft/cq_ex.h"

#include <errno.h>
#include <time.h>

#include "base/clock.h"
#include "soft/cq.h"
#include "soft/device.h"
#include "soft/domains.h"
#include "soft/error.h"

namespace millrace::soft {
namespace {

Cq& of(ibv_cq_ex* handle) { return *reinterpret_cast<Cq*>(handle); }

uint64_t wallclock_ns() {
  timespec ts;
  clock_gettime(CLOCK_REALTIME, &ts);
  return static_cast<uint64_t>(ts.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(ts.tv_nsec);
}

/** The next completion into `current`: 0, ENOENT, or why polling fails. Needs the session. */
int advance(Cq& cq) {
  const int got = poll_one(cq, &cq.current, &cq.current_extras);
  if (got == 0) return ENOENT;
  if (got < 0) return -got;
  cq.ex.wr_id = cq.current.wr_id;
  cq.ex.status = cq.current.status;
  if ((cq.wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP) != 0) cq.current_ts = base::now_ns();
  if ((cq.wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) != 0)
    cq.current_wallclock = wallclock_ns();
  return 0;
}

/** ENOENT and errors end the attempt: end_poll must not be called then. */
int start_poll(ibv_cq_ex* handle, ibv_poll_cq_attr* attr) {
  Cq& cq = of(handle);
  if (attr->comp_mask != 0)
    return fail(EINVAL, "start polling a CQ",
                base::format("comp_mask %#x has unknown bits", attr->comp_mask));
  if (!cq.single_threaded) cq.session.lock();
  const int error = advance(cq);
  if (error != 0 && !cq.single_threaded) cq.session.unlock();
  return error;
}

int next_poll(ibv_cq_ex* handle) { return advance(of(handle)); }

void end_poll(ibv_cq_ex* handle) {
  Cq& cq = of(handle);
  if (!cq.single_threaded) cq.session.unlock();
}

ibv_wc_opcode read_opcode(ibv_cq_ex* cq) { return of(cq).current.opcode; }
uint32_t read_vendor_err(ibv_cq_ex* cq) { return of(cq).current.vendor_err; }
uint32_t read_byte_len(ibv_cq_ex* cq) { return of(cq).current.byte_len; }
/** Immediate data, or the key that was invalidated (ibv_wc_read_invalidated_rkey). */
__be32 read_imm_data(ibv_cq_ex* cq) { return of(cq).current.imm_data; }
uint32_t read_qp_num(ibv_cq_ex* cq) { return of(cq).current.qp_num; }
uint32_t read_src_qp(ibv_cq_ex* cq) { return of(cq).current.src_qp; }
unsigned int read_wc_flags(ibv_cq_ex* cq) { return of(cq).current.wc_flags; }
uint32_t read_slid(ibv_cq_ex* cq) { return of(cq).current.slid; }
uint8_t read_sl(ibv_cq_ex* cq) { return of(cq).current.sl; }
uint8_t read_dlid_path_bits(ibv_cq_ex* cq) { return of(cq).current.dlid_path_bits; }
/** Nanoseconds of the clock that ibv_query_rt_values_ex() reads. */
uint64_t read_completion_ts(ibv_cq_ex* cq) { return of(cq).current_ts; }
uint64_t read_completion_wallclock_ns(ibv_cq_ex* cq) { return of(cq).current_wallclock; }
uint16_t read_cvlan(ibv_cq_ex* cq) { return of(cq).current_extras.cvlan; }
uint32_t read_flow_tag(ibv_cq_ex* cq) { return of(cq).current_extras.flow_tag; }
void read_tm_info(ibv_cq_ex*, ibv_wc_tm_info* info) { *info = {}; }

void set_ops(ibv_cq_ex& ex) {
  ex.start_poll = start_poll;
  ex.next_poll = next_poll;
  ex.end_poll = end_poll;
  ex.read_opcode = read_opcode;
  ex.read_vendor_err = read_vendor_err;
  ex.read_byte_len = read_byte_len;
  ex.read_imm_data = read_imm_data;
  ex.read_qp_num = read_qp_num;
  ex.read_src_qp = read_src_qp;
  ex.read_wc_flags = read_wc_flags;
  ex.read_slid = read_slid;
  ex.read_sl = read_sl;
  ex.read_dlid_path_bits = read_dlid_path_bits;
  ex.read_completion_ts = read_completion_ts;
  ex.read_completion_wallclock_ns = read_completion_wallclock_ns;
  ex.read_cvlan = read_cvlan;
  ex.read_flow_tag = read_flow_tag;
  ex.read_tm_info = read_tm_info;
}

}  // namespace

ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attr) {
  constexpr const char* what = "create an extended CQ";
  constexpr uint32_t known_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
  constexpr uint32_t known_flags =
      IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
  if ((attr->comp_mask & ~known_mask) != 0) {
    return fail_null(EINVAL, what, base::format("comp_mask %#x has unknown bits", attr->comp_mask));
  }
  if ((attr->wc_flags & ~kWcFlags) != 0) {
    return fail_null(EOPNOTSUPP, what,
                     base::format("wc_flags %#llx, of which this device has %#llx",
                                  static_cast<unsigned long long>(attr->wc_flags),
                                  static_cast<unsigned long long>(kWcFlags)));
  }
  CqOptions options;
  if ((attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) != 0) {
    if ((attr->flags & ~known_flags) != 0)
      return fail_null(EINVAL, what, base::format("flags %#x has unknown bits", attr->flags));
    options.single_threaded = (attr->flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED) != 0;
    options.ignores_overrun = (attr->flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN) != 0;
  }
  if ((attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_PD) != 0) {
    if (attr->parent_domain == nullptr || Pd::of(attr->parent_domain).base == nullptr)
      return fail_null(EINVAL, what, "parent_domain must be a parent domain");
    options.parent_domain = &Pd::of(attr->parent_domain);
    // Its thread domain says that no two threads use what is made with it.
    options.single_threaded |= options.parent_domain->td != nullptr;
  }
  Cq* cq = make_cq(Context::of(context), attr->cqe, attr->cq_context, attr->channel,
                   attr->comp_vector, options);
  if (cq == nullptr) return nullptr;
  cq->wc_flags = attr->wc_flags;
  set_ops(cq->ex);
  return &cq->ex;
}

int modify_cq(ibv_cq* handle, ibv_modify_cq_attr* attr) {
  if (forked()) return fail(EPERM, "modify a CQ", "this process was forked");
  if ((attr->attr_mask & ~uint32_t{IBV_CQ_ATTR_MODERATE}) != 0) {
    return fail(EINVAL, "modify a CQ",
                base::format("attr_mask %#x has unknown bits", attr->attr_mask));
  }
  if ((attr->attr_mask & IBV_CQ_ATTR_MODERATE) == 0) return 0;
  Moderation& moderation = Cq::of(handle).moderation;
  moderation.count.store(attr->moderate.cq_count, std::memory_order_relaxed);
  moderation.period_us.store(attr->moderate.cq_period, std::memory_order_relaxed);
  return 0;
}

}  // namespace millrace::soft
