#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace millrace::soft {

struct Qp;

/**
 * The work requests between ibv_wr_start() and ibv_wr_complete(). They are built here and posted
 * together through the same pipeline as ibv_post_send(). Elements and inline data are kept by
 * position while the list grows, and given their addresses at the end.
 */
struct WrList {
  struct Piece {
    uint32_t first_sge = 0, sges = 0;
    uint64_t inline_at = 0;
    bool has_data = false;
  };

  std::mutex session;  ///< held from start to complete or abort
  // Needs session.
  std::vector<ibv_send_wr> wrs;
  std::vector<Piece> pieces;  ///< one for each WR
  std::vector<ibv_sge> sges;
  std::vector<std::byte> inline_data;
  int error = 0;         ///< the first mistake; then nothing is posted
  uint64_t allowed = 0;  ///< send_ops_flags; set once
};

/** The operations that QPs of a type can be asked for with send_ops_flags. */
uint64_t send_ops_of(ibv_qp_type type);

/** Makes the QP one that ibv_qp_to_qp_ex() knows, with these operations. */
void enable_wr_ex(Qp& qp, uint64_t send_ops_flags);

/** Null if the QP was not created with IBV_QP_INIT_ATTR_SEND_OPS_FLAGS. */
ibv_qp_ex* qp_to_qp_ex(ibv_qp* qp);

}  // namespace millrace::soft
