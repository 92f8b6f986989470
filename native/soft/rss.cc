#include "soft/rss.h"

#include <errno.h>
#include <string.h>

#include <memory>
#include <mutex>

#include "soft/claims.h"
#include "soft/error.h"
#include "soft/initiator.h"
#include "soft/qp.h"
#include "soft/step.h"

namespace millrace::soft {
namespace {

/** Appends `n` bytes of input to a Toeplitz sum over a key. */
class Toeplitz {
 public:
  explicit Toeplitz(const uint8_t* key) : key_(key) {}
  void add(const uint8_t* data, size_t n) {
    for (size_t i = 0; i < n; ++i) {
      for (int bit = 7; bit >= 0; --bit, ++position_) {
        if ((data[i] >> bit & 1) != 0) sum_ ^= window();
      }
    }
  }
  uint32_t sum() const { return sum_; }

 private:
  /** The 32 bits of the key that start at the present bit of the input. */
  uint32_t window() const {
    uint64_t bits = 0;
    for (size_t k = 0; k < 5; ++k) {
      const size_t at = position_ / 8 + k;
      bits = bits << 8 | (at < kHashKey ? key_[at] : 0);
    }
    return static_cast<uint32_t>(bits >> (8 - position_ % 8));
  }
  const uint8_t* key_;
  size_t position_ = 0;
  uint32_t sum_ = 0;
};

int to_state(ibv_qp* qp, ibv_qp_state state, int mask = 0) {
  ibv_qp_attr attr = {};
  attr.qp_state = state;
  attr.port_num = 1;
  return modify_qp(qp, &attr, IBV_QP_STATE | mask);
}

ibv_wq_state state_of(const ibv_qp* qp) {
  switch (qp->state) {
    case IBV_QPS_RTS:
      return IBV_WQS_RDY;
    case IBV_QPS_ERR:
      return IBV_WQS_ERR;
    default:
      return IBV_WQS_RESET;
  }
}

int post_wq_recv(ibv_wq* wq, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  return post_recv(Wq::of(wq).qp, wr, bad);
}

}  // namespace

uint32_t spread_hash(const Spread& spread, const PacketFields& fields) {
  const uint64_t want = spread.fields;
  const HeaderFields& h = (want & IBV_RX_HASH_INNER) != 0 ? fields.inner : fields.outer;
  Toeplitz toeplitz(spread.key);
  const auto address = [&](Layer layer, size_t bytes, uint64_t src, uint64_t dst) {
    if ((h.layers & layer) == 0) return;
    if ((want & src) != 0) toeplitz.add(h.src_ip, bytes);
    if ((want & dst) != 0) toeplitz.add(h.dst_ip, bytes);
  };
  const auto port = [&](Layer layer, uint64_t src, uint64_t dst) {
    if ((h.layers & layer) == 0) return;
    if ((want & src) != 0) toeplitz.add(reinterpret_cast<const uint8_t*>(&h.src_port), 2);
    if ((want & dst) != 0) toeplitz.add(reinterpret_cast<const uint8_t*>(&h.dst_port), 2);
  };
  address(kLayerIpv4, 4, IBV_RX_HASH_SRC_IPV4, IBV_RX_HASH_DST_IPV4);
  address(kLayerIpv6, 16, IBV_RX_HASH_SRC_IPV6, IBV_RX_HASH_DST_IPV6);
  port(kLayerTcp, IBV_RX_HASH_SRC_PORT_TCP, IBV_RX_HASH_DST_PORT_TCP);
  port(kLayerUdp, IBV_RX_HASH_SRC_PORT_UDP, IBV_RX_HASH_DST_PORT_UDP);
  if ((want & IBV_RX_HASH_IPSEC_SPI) != 0 && (h.layers & kLayerEsp) != 0)
    toeplitz.add(reinterpret_cast<const uint8_t*>(&h.esp_spi), 4);
  return toeplitz.sum();
}

uint32_t spread_to(const Spread& spread, const PacketFields& fields) {
  if (spread.size == 0) return 0;
  return spread.qpns[spread_hash(spread, fields) & (spread.size - 1)];
}

Spread read_spread(Root& root, uint32_t index) {
  Spread spread;
  if (index >= root.spreads()) return {};
  const SpreadRecord& record = root.spread(index);
  uint64_t word = 0;
  const bool live = read_claim(record, &word, [&] {
    spread.fields = record.fields;
    spread.size = record.size;
    memcpy(spread.key, record.key, sizeof(spread.key));
    memcpy(spread.qpns, record.qpns, sizeof(spread.qpns));
  });
  const bool good = spread.size <= kSpreadQueues && (spread.size & (spread.size - 1)) == 0;  // I9
  return live && good ? spread : Spread{};
}

ibv_wq* create_wq(ibv_context* handle, ibv_wq_init_attr* attr) {
  constexpr const char* kWhat = "create a WQ";
  if (attr->wq_type != IBV_WQT_RQ) return fail_null(EINVAL, kWhat, "its type must be RQ");
  const bool flags = (attr->comp_mask & IBV_WQ_INIT_ATTR_FLAGS) != 0 && attr->create_flags != 0;
  if (flags || (attr->comp_mask & ~static_cast<uint32_t>(IBV_WQ_INIT_ATTR_FLAGS)) != 0) {
    return fail_null(EOPNOTSUPP, kWhat,
                     base::format("comp_mask %#x, create_flags %#x: none is offered",
                                  attr->comp_mask, attr->create_flags));
  }
  ibv_qp_init_attr_ex hidden = {};
  hidden.qp_type = IBV_QPT_RAW_PACKET;
  hidden.comp_mask = IBV_QP_INIT_ATTR_PD;
  hidden.pd = attr->pd;
  hidden.send_cq = hidden.recv_cq = attr->cq;
  hidden.cap.max_recv_wr = attr->max_wr;
  hidden.cap.max_recv_sge = attr->max_sge;
  ibv_qp* qp = create_qp_ex(handle, &hidden);
  if (qp == nullptr) return nullptr;
  Wq* wq = new Wq;
  wq->qp = qp;
  wq->wq.context = handle;
  wq->wq.pd = attr->pd;
  wq->wq.cq = attr->cq;
  wq->wq.wq_num = qp->qp_num;
  wq->wq.handle = qp->handle;
  wq->wq.state = IBV_WQS_RESET;
  wq->wq.wq_type = IBV_WQT_RQ;
  wq->wq.post_recv = post_wq_recv;
  attr->max_wr = hidden.cap.max_recv_wr;
  attr->max_sge = hidden.cap.max_recv_sge;
  return &wq->wq;
}

int modify_wq(ibv_wq* handle, ibv_wq_attr* attr) {
  constexpr const char* kWhat = "modify a WQ";
  Wq& wq = Wq::of(handle);
  if ((attr->attr_mask & IBV_WQ_ATTR_FLAGS) != 0)
    return fail(EOPNOTSUPP, kWhat, "no flag is offered");
  const ibv_wq_state from = state_of(wq.qp);
  if ((attr->attr_mask & IBV_WQ_ATTR_CURR_STATE) != 0 && attr->curr_wq_state != from) {
    return fail(EINVAL, kWhat,
                base::format("curr_wq_state is %d, the WQ is in %d", attr->curr_wq_state, from));
  }
  if ((attr->attr_mask & IBV_WQ_ATTR_STATE) == 0) return 0;
  const ibv_wq_state to = attr->wq_state;
  int error = 0;
  if (to == IBV_WQS_RESET) {
    error = to_state(wq.qp, IBV_QPS_RESET);
  } else if (to == IBV_WQS_RDY && from == IBV_WQS_RESET) {
    error = to_state(wq.qp, IBV_QPS_INIT, IBV_QP_PORT);
    if (error == 0) error = to_state(wq.qp, IBV_QPS_RTR);
    if (error == 0) error = to_state(wq.qp, IBV_QPS_RTS);
  } else if (to == IBV_WQS_ERR && from == IBV_WQS_RDY) {
    error = to_state(wq.qp, IBV_QPS_ERR);
  } else if (to != from) {
    return fail(EINVAL, kWhat, base::format("there is no transition from %d to %d", from, to));
  }
  if (error == 0) handle->state = to;
  return error;
}

int destroy_wq(ibv_wq* handle) {
  Wq* wq = &Wq::of(handle);
  const uint32_t users = wq->users.load();
  if (users != 0)
    return fail(EBUSY, "destroy a WQ", base::format("%u indirection tables have it", users));
  const int error = destroy_qp(wq->qp);
  if (error != 0) return error;
  delete wq;
  return 0;
}

ibv_rwq_ind_table* create_rwq_ind_table(ibv_context* handle, ibv_rwq_ind_table_init_attr* attr) {
  constexpr const char* kWhat = "create an indirection table";
  if (forked()) return fail_null(EPERM, kWhat, "this process was forked");
  if (attr->comp_mask != 0) return fail_null(EOPNOTSUPP, kWhat, "comp_mask must be 0");
  if (attr->log_ind_tbl_size > 31 || (1u << attr->log_ind_tbl_size) > kSpreadQueues) {
    return fail_null(
        EINVAL, kWhat,
        base::format("2^%u entries, at most %u", attr->log_ind_tbl_size, kSpreadQueues));
  }
  auto table = std::make_unique<IndirectionTable>();
  Context& context = Context::of(handle);
  for (uint32_t i = 0; i < 1u << attr->log_ind_tbl_size; ++i) {
    if (attr->ind_tbl[i] == nullptr || attr->ind_tbl[i]->context != handle)
      return fail_null(EINVAL, kWhat, base::format("WQ %u is not of this context", i));
    table->wqs.push_back(&Wq::of(attr->ind_tbl[i]));
  }
  for (Wq* wq : table->wqs) wq->users.fetch_add(1);
  table->table.context = handle;
  table->table.ind_tbl_num = static_cast<int>(context.process->next_number() & 0x7FFFFFFF);
  table->table.ind_tbl_handle = table->table.ind_tbl_num;
  context.objects.fetch_add(1, std::memory_order_relaxed);
  return &table.release()->table;
}

int destroy_rwq_ind_table(ibv_rwq_ind_table* handle) {
  if (forked()) return fail(EPERM, "destroy an indirection table", "this process was forked");
  IndirectionTable* table = &IndirectionTable::of(handle);
  const uint32_t users = table->users.load();
  if (users != 0)
    return fail(EBUSY, "destroy an indirection table", base::format("%u QPs use it", users));
  for (Wq* wq : table->wqs) wq->users.fetch_sub(1);
  Context::of(handle->context).objects.fetch_sub(1, std::memory_order_relaxed);
  delete table;
  return 0;
}

base::Status check_spread(const ibv_qp_init_attr_ex& attr) {
  const auto refuse = [](int code, std::string why) {
    return base::Status::error(code, "create a QP", std::move(why));
  };
  constexpr uint32_t both = IBV_QP_INIT_ATTR_RX_HASH | IBV_QP_INIT_ATTR_IND_TABLE;
  if ((attr.comp_mask & both) != both || attr.rwq_ind_tbl == nullptr)
    return refuse(EINVAL, "receive side scaling needs a hash and an indirection table");
  if (attr.qp_type != IBV_QPT_RAW_PACKET)
    return refuse(EOPNOTSUPP, "receive side scaling is for RAW_PACKET");
  const ibv_rx_hash_conf& hash = attr.rx_hash_conf;
  if (hash.rx_hash_function != IBV_RX_HASH_FUNC_TOEPLITZ)
    return refuse(EOPNOTSUPP, "the hash function must be TOEPLITZ");
  if (hash.rx_hash_key_len != kHashKey || hash.rx_hash_key == nullptr)
    return refuse(
        EINVAL, base::format("a key of %u bytes, it must have %u", hash.rx_hash_key_len, kHashKey));
  const uint64_t fields = hash.rx_hash_fields_mask;
  constexpr uint64_t v4 = IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4;
  constexpr uint64_t v6 = IBV_RX_HASH_SRC_IPV6 | IBV_RX_HASH_DST_IPV6;
  constexpr uint64_t tcp = IBV_RX_HASH_SRC_PORT_TCP | IBV_RX_HASH_DST_PORT_TCP;
  constexpr uint64_t udp = IBV_RX_HASH_SRC_PORT_UDP | IBV_RX_HASH_DST_PORT_UDP;
  if ((fields & ~kHashFields) != 0) return refuse(EOPNOTSUPP, "unknown hash fields");
  if (((fields & v4) != 0 && (fields & v6) != 0) || ((fields & tcp) != 0 && (fields & udp) != 0))
    return refuse(EINVAL, "IPv4 and IPv6, or TCP and UDP, can't be hashed by one QP");
  return base::Status::success();
}

base::Status begin_spread(Qp& qp, const ibv_qp_init_attr_ex& attr) {
  Process& process = *qp.process;
  Root& root = process.root();
  IndirectionTable& table = IndirectionTable::of(attr.rwq_ind_tbl);
  std::lock_guard objects(process.objects());
  for (uint32_t i = 0; i < root.spreads(); ++i) {
    SpreadRecord& record = root.spread(i);
    if (!claim_record(record.owner, process.owner())) continue;
    step("spread claimed");
    record.fields = attr.rx_hash_conf.rx_hash_fields_mask;
    record.size = static_cast<uint32_t>(table.wqs.size());
    memcpy(record.key, attr.rx_hash_conf.rx_hash_key, sizeof(record.key));
    for (uint32_t k = 0; k < record.size; ++k) record.qpns[k] = table.wqs[k]->qp->qp_num;
    qp.spread_word = claim_live(process.owner(), process.next_number());
    record.owner.store(qp.spread_word);
    step("spread announced");
    qp.spread = i + 1;
    qp.table = &table;
    table.users.fetch_add(1);
    return base::Status::success();
  }
  return base::Status::error(
      ENOMEM, "create a QP",
      base::format("all %u spreads of the fabric are in use", root.spreads()));
}

void end_spread(Qp& qp) {
  if (qp.spread == 0) return;
  uint64_t word = qp.spread_word;
  qp.process->root().spread(qp.spread - 1).owner.compare_exchange_strong(word, 0);
  qp.process->root().header().flows_changed.fetch_add(1);  // R32
  qp.table->users.fetch_sub(1);
}

}  // namespace millrace::soft
