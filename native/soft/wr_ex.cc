#include "soft/wr_ex.h"

#include <errno.h>

#include <memory>

#include "soft/error.h"
#include "soft/initiator.h"
#include "soft/qp.h"

namespace millrace::soft {
namespace {

constexpr const char* kWhat = "post work requests";

constexpr uint64_t kDatagramOps = IBV_QP_EX_WITH_SEND | uint64_t{IBV_QP_EX_WITH_SEND_WITH_IMM};
constexpr uint64_t kUnreliableOps = kDatagramOps | IBV_QP_EX_WITH_RDMA_WRITE |
                                    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_LOCAL_INV |
                                    IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_SEND_WITH_INV;
constexpr uint64_t kReliableOps = kUnreliableOps | IBV_QP_EX_WITH_RDMA_READ |
                                  IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                                  IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_ATOMIC_WRITE;

Qp& of(ibv_qp_ex* ex) { return Qp::of(&ex->qp_base); }
WrList& list_of(ibv_qp_ex* ex) { return *of(ex).wr_list; }

/** Keeps the first mistake for complete(). */
void mistake(WrList& list, int error, std::string why) {
  if (list.error == 0) list.error = fail(error, kWhat, std::move(why));
}

/** Begins a WR with what the caller has put into the QP. */
ibv_send_wr& begin(ibv_qp_ex* ex, ibv_wr_opcode opcode, uint64_t flag) {
  WrList& list = list_of(ex);
  if ((list.allowed & flag) == 0)
    mistake(list, EINVAL, base::format("operation %d was not asked for in send_ops_flags", opcode));
  ibv_send_wr& wr = list.wrs.emplace_back();
  wr = {};
  wr.wr_id = ex->wr_id;
  wr.opcode = opcode;
  // Whether data is inline is said by who gives it.
  wr.send_flags = ex->wr_flags & ~static_cast<unsigned>(IBV_SEND_INLINE);
  list.pieces.emplace_back();
  return wr;
}

/** The WR that a setter is about; null (a mistake) if none was begun. */
ibv_send_wr* current(ibv_qp_ex* ex) {
  WrList& list = list_of(ex);
  if (!list.wrs.empty()) return &list.wrs.back();
  mistake(list, EINVAL, "there is no work request yet to set something of");
  return nullptr;
}

void rdma(ibv_send_wr& wr, uint32_t rkey, uint64_t address) {
  wr.wr.rdma.rkey = rkey;
  wr.wr.rdma.remote_addr = address;
}

void wr_send(ibv_qp_ex* ex) { begin(ex, IBV_WR_SEND, IBV_QP_EX_WITH_SEND); }
void wr_send_imm(ibv_qp_ex* ex, __be32 imm) {
  begin(ex, IBV_WR_SEND_WITH_IMM, IBV_QP_EX_WITH_SEND_WITH_IMM).imm_data = imm;
}
void wr_send_inv(ibv_qp_ex* ex, uint32_t rkey) {
  begin(ex, IBV_WR_SEND_WITH_INV, IBV_QP_EX_WITH_SEND_WITH_INV).invalidate_rkey = rkey;
}
void wr_send_tso(ibv_qp_ex* ex, void*, uint16_t, uint16_t) {
  mistake(list_of(ex), EOPNOTSUPP, "this device has no segmentation offload");
}
void wr_rdma_write(ibv_qp_ex* ex, uint32_t rkey, uint64_t address) {
  rdma(begin(ex, IBV_WR_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE), rkey, address);
}
void wr_rdma_write_imm(ibv_qp_ex* ex, uint32_t rkey, uint64_t address, __be32 imm) {
  ibv_send_wr& wr = begin(ex, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM);
  rdma(wr, rkey, address);
  wr.imm_data = imm;
}
void wr_rdma_read(ibv_qp_ex* ex, uint32_t rkey, uint64_t address) {
  rdma(begin(ex, IBV_WR_RDMA_READ, IBV_QP_EX_WITH_RDMA_READ), rkey, address);
}
void wr_atomic_cmp_swp(ibv_qp_ex* ex, uint32_t rkey, uint64_t address, uint64_t compare,
                       uint64_t swap) {
  ibv_send_wr& wr = begin(ex, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP);
  wr.wr.atomic.rkey = rkey;
  wr.wr.atomic.remote_addr = address;
  wr.wr.atomic.compare_add = compare;
  wr.wr.atomic.swap = swap;
}
void wr_atomic_fetch_add(ibv_qp_ex* ex, uint32_t rkey, uint64_t address, uint64_t add) {
  ibv_send_wr& wr = begin(ex, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD);
  wr.wr.atomic.rkey = rkey;
  wr.wr.atomic.remote_addr = address;
  wr.wr.atomic.compare_add = add;
}
void wr_local_inv(ibv_qp_ex* ex, uint32_t rkey) {
  begin(ex, IBV_WR_LOCAL_INV, IBV_QP_EX_WITH_LOCAL_INV).invalidate_rkey = rkey;
}
void wr_bind_mw(ibv_qp_ex* ex, ibv_mw* mw, uint32_t rkey, const ibv_mw_bind_info* info) {
  ibv_send_wr& wr = begin(ex, IBV_WR_BIND_MW, IBV_QP_EX_WITH_BIND_MW);
  wr.bind_mw.mw = mw;
  wr.bind_mw.rkey = rkey;
  wr.bind_mw.bind_info = *info;
}

void wr_set_ud_addr(ibv_qp_ex* ex, ibv_ah* ah, uint32_t qpn, uint32_t qkey) {
  ibv_send_wr* wr = current(ex);
  if (wr == nullptr) return;
  wr->wr.ud.ah = ah;
  wr->wr.ud.remote_qpn = qpn;
  wr->wr.ud.remote_qkey = qkey;
}
void wr_set_xrc_srqn(ibv_qp_ex* ex, uint32_t srqn) {
  if (ibv_send_wr* wr = current(ex)) wr->qp_type.xrc.remote_srqn = srqn;
}

/** The place for the current WR's data; null (a mistake) if it has some. */
WrList::Piece* data_of(ibv_qp_ex* ex) {
  if (current(ex) == nullptr) return nullptr;
  WrList& list = list_of(ex);
  WrList::Piece& piece = list.pieces.back();
  if (piece.has_data) {
    mistake(list, EINVAL, "the data of a work request can be set once");
    return nullptr;
  }
  piece.has_data = true;
  return &piece;
}

void wr_set_sge_list(ibv_qp_ex* ex, size_t count, const ibv_sge* from) {
  WrList::Piece* piece = data_of(ex);
  if (piece == nullptr) return;
  WrList& list = list_of(ex);
  piece->first_sge = static_cast<uint32_t>(list.sges.size());
  piece->sges = static_cast<uint32_t>(count);
  list.sges.insert(list.sges.end(), from, from + count);
}
void wr_set_sge(ibv_qp_ex* ex, uint32_t lkey, uint64_t address, uint32_t length) {
  const ibv_sge sge = {address, length, lkey};
  wr_set_sge_list(ex, 1, &sge);
}

/** Data that is copied now, and may be changed by the caller at once. */
void append_inline(ibv_qp_ex* ex, const ibv_data_buf* buffers, size_t count) {
  WrList::Piece* piece = data_of(ex);
  if (piece == nullptr) return;
  WrList& list = list_of(ex);
  const uint64_t start = list.inline_data.size();
  for (size_t i = 0; i < count; ++i) {
    const std::byte* data = static_cast<const std::byte*>(buffers[i].addr);
    list.inline_data.insert(list.inline_data.end(), data, data + buffers[i].length);
  }
  const uint64_t bytes = list.inline_data.size() - start;
  if (bytes > of(ex).cap.max_inline_data) {
    mistake(list, EINVAL,
            base::format("%llu bytes of inline data are more than max_inline_data, %u",
                         static_cast<unsigned long long>(bytes), of(ex).cap.max_inline_data));
  }
  piece->first_sge = static_cast<uint32_t>(list.sges.size());
  piece->sges = 1;
  piece->inline_at = start;
  list.sges.push_back({0, static_cast<uint32_t>(bytes), 0});
  list.wrs.back().send_flags |= IBV_SEND_INLINE;
}
void wr_set_inline_data(ibv_qp_ex* ex, void* address, size_t length) {
  const ibv_data_buf buffer = {address, length};
  append_inline(ex, &buffer, 1);
}
void wr_set_inline_data_list(ibv_qp_ex* ex, size_t count, const ibv_data_buf* buffers) {
  append_inline(ex, buffers, count);
}

void wr_atomic_write(ibv_qp_ex* ex, uint32_t rkey, uint64_t address, const void* value) {
  rdma(begin(ex, IBV_WR_ATOMIC_WRITE, IBV_QP_EX_WITH_ATOMIC_WRITE), rkey, address);
  // Eight bytes, which are part of the request whatever max_inline_data is.
  WrList& list = list_of(ex);
  WrList::Piece& piece = list.pieces.back();
  const std::byte* data = static_cast<const std::byte*>(value);
  piece.has_data = true;
  piece.first_sge = static_cast<uint32_t>(list.sges.size());
  piece.sges = 1;
  piece.inline_at = list.inline_data.size();
  list.inline_data.insert(list.inline_data.end(), data, data + 8);
  list.sges.push_back({0, 8, 0});
  list.wrs.back().send_flags |= IBV_SEND_INLINE;
}

void clear(WrList& list) {
  list.wrs.clear();
  list.pieces.clear();
  list.sges.clear();
  list.inline_data.clear();
  list.error = 0;
}

void wr_start(ibv_qp_ex* ex) {
  WrList& list = list_of(ex);
  list.session.lock();
  clear(list);
}

void wr_abort(ibv_qp_ex* ex) { list_of(ex).session.unlock(); }

/** All of them or none (ibv_wr_post(3)): what can be refused is looked at before the first is
 * posted. */
int wr_complete(ibv_qp_ex* ex) {
  WrList& list = list_of(ex);
  for (size_t i = 0; i < list.wrs.size(); ++i) {
    ibv_send_wr& wr = list.wrs[i];
    const WrList::Piece& piece = list.pieces[i];
    wr.next = i + 1 < list.wrs.size() ? &list.wrs[i + 1] : nullptr;
    wr.sg_list = list.sges.data() + piece.first_sge;
    wr.num_sge = static_cast<int>(piece.sges);
    if ((wr.send_flags & IBV_SEND_INLINE) != 0)
      wr.sg_list->addr = reinterpret_cast<uintptr_t>(list.inline_data.data() + piece.inline_at);
  }
  int error = list.error;
  if (error == 0 && !list.wrs.empty())
    error = post_all(of(ex), list.wrs.data(), static_cast<uint32_t>(list.wrs.size()));
  list.session.unlock();
  return error;
}

}  // namespace

uint64_t send_ops_of(ibv_qp_type type) {
  switch (type) {
    case IBV_QPT_RC:
    case IBV_QPT_XRC_SEND:
      return kReliableOps;
    case IBV_QPT_UC:
      return kUnreliableOps;
    case IBV_QPT_UD:
      return kDatagramOps;
    case IBV_QPT_RAW_PACKET:
      return IBV_QP_EX_WITH_SEND;
    default:
      return 0;
  }
}

void enable_wr_ex(Qp& qp, uint64_t send_ops_flags) {
  qp.wr_list = std::make_unique<WrList>();
  qp.wr_list->allowed = send_ops_flags;
  ibv_qp_ex& ex = qp.ex;
  ex.wr_atomic_cmp_swp = wr_atomic_cmp_swp;
  ex.wr_atomic_fetch_add = wr_atomic_fetch_add;
  ex.wr_bind_mw = wr_bind_mw;
  ex.wr_local_inv = wr_local_inv;
  ex.wr_rdma_read = wr_rdma_read;
  ex.wr_rdma_write = wr_rdma_write;
  ex.wr_rdma_write_imm = wr_rdma_write_imm;
  ex.wr_send = wr_send;
  ex.wr_send_imm = wr_send_imm;
  ex.wr_send_inv = wr_send_inv;
  ex.wr_send_tso = wr_send_tso;
  ex.wr_set_ud_addr = wr_set_ud_addr;
  ex.wr_set_xrc_srqn = wr_set_xrc_srqn;
  ex.wr_set_inline_data = wr_set_inline_data;
  ex.wr_set_inline_data_list = wr_set_inline_data_list;
  ex.wr_set_sge = wr_set_sge;
  ex.wr_set_sge_list = wr_set_sge_list;
  ex.wr_start = wr_start;
  ex.wr_complete = wr_complete;
  ex.wr_abort = wr_abort;
  ex.wr_atomic_write = wr_atomic_write;
}

ibv_qp_ex* qp_to_qp_ex(ibv_qp* handle) {
  Qp& qp = Qp::of(handle);
  return qp.wr_list != nullptr ? &qp.ex : nullptr;
}

}  // namespace millrace::soft
