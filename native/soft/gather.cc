#include "soft/pipeline.h"
#include "soft/translate.h"

namespace millrace::soft {

ibv_wc_status gather(Qp& qp, const ibv_send_wr& wr, uint32_t access, Segment* out, int* count,
                     uint32_t* total) {
  uint64_t sum = 0;
  int n = 0;
  const bool is_inline = (wr.send_flags & IBV_SEND_INLINE) != 0 && access == 0;
  for (int i = 0; i < wr.num_sge; ++i) {
    const ibv_sge& sge = wr.sg_list[i];
    if (sge.length == 0) continue;
    std::byte* data = is_inline ? reinterpret_cast<std::byte*>(sge.addr)
                                : local_address(*qp.process, qp.pd, sge, access);
    if (data == nullptr) return IBV_WC_LOC_PROT_ERR;
    out[n++] = Segment{data, sge.length};
    sum += sge.length;
  }
  if (sum > (uint64_t{1} << 31)) return IBV_WC_LOC_LEN_ERR;
  *count = n;
  *total = static_cast<uint32_t>(sum);
  return IBV_WC_SUCCESS;
}

}  // namespace millrace::soft
