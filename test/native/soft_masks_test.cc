// Which attributes a transition needs and takes (VERBS 2.8): RC and UC, all of them.
#include "soft_support.h"

namespace millrace::test {
namespace {

constexpr int kPath = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
constexpr int kUcConnect = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
constexpr int kRcConnect = kUcConnect | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
constexpr int kRcSend =
    IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
constexpr int kRtrOptional = IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX;
constexpr int kRtsOptional =
    IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE;
constexpr int kRcSqd = kPath | IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                       IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_ALT_PATH |
                       IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE;
constexpr int kUcSqd =
    IBV_QP_AV | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PATH_MIG_STATE;

struct Row {
  ibv_qp_type type;
  ibv_qp_state from, to;
  int required, optional;
};

/** The verbs specification's table, as the kernel's qp_state_table has it. What is not in it is no
 * transition; to RESET and (but from RESET) to ERR nothing is needed. */
const Row kTable[] = {
    {IBV_QPT_RC, IBV_QPS_RESET, IBV_QPS_INIT, kPath, 0},
    {IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_INIT, 0, kPath},
    {IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR, kRcConnect, kRtrOptional},
    {IBV_QPT_RC, IBV_QPS_RTR, IBV_QPS_RTS, kRcSend, kRtsOptional | IBV_QP_MIN_RNR_TIMER},
    {IBV_QPT_RC, IBV_QPS_RTS, IBV_QPS_RTS, 0, kRtsOptional | IBV_QP_MIN_RNR_TIMER},
    {IBV_QPT_RC, IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPT_RC, IBV_QPS_SQD, IBV_QPS_RTS, 0, kRtsOptional | IBV_QP_MIN_RNR_TIMER},
    {IBV_QPT_RC, IBV_QPS_SQD, IBV_QPS_SQD, 0, kRcSqd},
    {IBV_QPT_UC, IBV_QPS_RESET, IBV_QPS_INIT, kPath, 0},
    {IBV_QPT_UC, IBV_QPS_INIT, IBV_QPS_INIT, 0, kPath},
    {IBV_QPT_UC, IBV_QPS_INIT, IBV_QPS_RTR, kUcConnect, kRtrOptional},
    {IBV_QPT_UC, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN, kRtsOptional},
    {IBV_QPT_UC, IBV_QPS_RTS, IBV_QPS_RTS, 0, kRtsOptional},
    {IBV_QPT_UC, IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPT_UC, IBV_QPS_SQD, IBV_QPS_RTS, 0, kRtsOptional},
    {IBV_QPT_UC, IBV_QPS_SQD, IBV_QPS_SQD, 0, kUcSqd},
};

constexpr ibv_qp_state kStates[] = {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR,
                                    IBV_QPS_RTS,   IBV_QPS_SQD,  IBV_QPS_ERR};
/** CAP is not in any row: this device does not resize. */
constexpr int kAll = (IBV_QP_DEST_QPN << 1) - 1;

const Row* row_of(ibv_qp_type type, ibv_qp_state from, ibv_qp_state to) {
  for (const Row& row : kTable) {
    if (row.type == type && row.from == from && row.to == to) return &row;
  }
  return nullptr;
}

/** Brings a QP from wherever it is to a state. */
void bring(Connected& end, ibv_qp_state state) {
  ASSERT_EQ(end.modify(IBV_QPS_RESET), 0);
  if (state == IBV_QPS_RESET) return;
  ASSERT_EQ(end.init(), 0);
  if (state == IBV_QPS_INIT) return;
  if (state == IBV_QPS_ERR) {
    ASSERT_EQ(end.modify(IBV_QPS_ERR), 0);
    return;
  }
  ASSERT_EQ(end.rtr(end.qpn()), 0);
  if (state == IBV_QPS_RTR) return;
  ASSERT_EQ(end.rts(), 0);
  if (state == IBV_QPS_SQD) {
    ASSERT_EQ(end.modify(IBV_QPS_SQD), 0);
  }
}

int attempt(Connected& end, ibv_qp_state from, ibv_qp_state to, int mask) {
  ibv_qp_attr attr = {};
  attr.qp_state = to;
  attr.cur_qp_state = from;
  attr.port_num = 1;
  attr.path_mtu = IBV_MTU_1024;
  attr.dest_qp_num = end.qpn();
  attr.ah_attr.port_num = 1;
  attr.ah_attr.dlid = 1;
  attr.alt_port_num = 1;
  attr.alt_ah_attr.port_num = 1;
  return ibv_modify_qp(end.qp.get(), &attr, mask | IBV_QP_STATE);
}

class SoftMasks : public ::testing::TestWithParam<ibv_qp_type> {};

TEST_P(SoftMasks, EveryTransition) {
  Fabric fabric;
  Connected::Options options;
  options.type = GetParam();
  options.post = false;
  Connected end(options);
  for (ibv_qp_state from : kStates) {
    for (ibv_qp_state to : kStates) {
      SCOPED_TRACE(testing::Message() << from << " to " << to);
      const Row* row = row_of(options.type, from, to);
      const bool free = to == IBV_QPS_RESET || (to == IBV_QPS_ERR && from != IBV_QPS_RESET);
      bring(end, from);
      ASSERT_EQ(end.state(), from);
      const int required = row != nullptr ? row->required : 0;
      EXPECT_EQ(attempt(end, from, to, required), row != nullptr || free ? 0 : EINVAL);
      EXPECT_EQ(end.state(), row != nullptr || free ? to : from);
      if (row == nullptr && !free) continue;
      for (int bit = IBV_QP_CUR_STATE; bit <= kAll; bit <<= 1) {
        SCOPED_TRACE(testing::Message() << "bit " << bit);
        const bool needed = (required & bit) != 0;
        const bool allowed = row != nullptr && (row->optional & bit) != 0;
        bring(end, from);
        // Required ones left out, the others put in.
        EXPECT_EQ(attempt(end, from, to, required ^ bit), allowed && !needed ? 0 : EINVAL);
        EXPECT_EQ(end.state(), allowed && !needed ? to : from);
        ASSERT_FALSE(::testing::Test::HasFatalFailure());
      }
    }
  }
}

TEST_P(SoftMasks, ValuesOutOfRange) {
  Fabric fabric;
  Connected::Options options;
  options.type = GetParam();
  options.post = false;
  Connected end(options);
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 2;
  EXPECT_EQ(ibv_modify_qp(end.qp.get(), &attr, IBV_QP_STATE | kPath), EINVAL);
  attr.port_num = 1;
  attr.pkey_index = 1;
  EXPECT_EQ(ibv_modify_qp(end.qp.get(), &attr, IBV_QP_STATE | kPath), EINVAL);
  attr.pkey_index = 0;
  ASSERT_EQ(ibv_modify_qp(end.qp.get(), &attr, IBV_QP_STATE | kPath), 0);
  attr.qp_state = IBV_QPS_RTR;
  attr.dest_qp_num = 1u << 24;
  attr.path_mtu = IBV_MTU_1024;
  attr.ah_attr.port_num = 1;
  attr.ah_attr.dlid = 1;
  const int connect = IBV_QP_STATE | (options.type == IBV_QPT_RC ? kRcConnect : kUcConnect);
  EXPECT_EQ(ibv_modify_qp(end.qp.get(), &attr, connect), EINVAL);
  attr.dest_qp_num = end.qpn();
  attr.path_mtu = static_cast<ibv_mtu>(6);
  EXPECT_EQ(ibv_modify_qp(end.qp.get(), &attr, connect), EINVAL);
  attr.path_mtu = IBV_MTU_1024;
  if (options.type == IBV_QPT_RC) {
    attr.min_rnr_timer = 32;
    EXPECT_EQ(ibv_modify_qp(end.qp.get(), &attr, connect), EINVAL);
    attr.min_rnr_timer = 0;
    attr.max_dest_rd_atomic = 17;
    EXPECT_EQ(ibv_modify_qp(end.qp.get(), &attr, connect), EINVAL);
    attr.max_dest_rd_atomic = 1;
  }
  ASSERT_EQ(ibv_modify_qp(end.qp.get(), &attr, connect), 0);
  if (options.type != IBV_QPT_RC) return;
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = 32;
  EXPECT_EQ(ibv_modify_qp(end.qp.get(), &attr, IBV_QP_STATE | kRcSend), EINVAL);
  attr.timeout = 1;
  attr.retry_cnt = 8;
  EXPECT_EQ(ibv_modify_qp(end.qp.get(), &attr, IBV_QP_STATE | kRcSend), EINVAL);
  attr.retry_cnt = 7;
  attr.rnr_retry = 8;
  EXPECT_EQ(ibv_modify_qp(end.qp.get(), &attr, IBV_QP_STATE | kRcSend), EINVAL);
  attr.rnr_retry = 7;
  attr.cur_qp_state = IBV_QPS_INIT;
  EXPECT_EQ(ibv_modify_qp(end.qp.get(), &attr, IBV_QP_STATE | kRcSend | IBV_QP_CUR_STATE), EINVAL);
  EXPECT_EQ(ibv_modify_qp(end.qp.get(), &attr, IBV_QP_STATE | kRcSend), 0);
}

INSTANTIATE_TEST_SUITE_P(Types, SoftMasks, ::testing::Values(IBV_QPT_RC, IBV_QPT_UC),
                         [](const auto& which) { return which.param == IBV_QPT_RC ? "RC" : "UC"; });

}  // namespace
}  // namespace millrace::test
