#include <infiniband/verbs.h>

#include <string>

#include "base/status.h"
#include "soft/qp.h"

// Which attributes a transition must and may carry (VERBS 2.8; the verbs specification's modify-QP
// table). A row is (type, from, to); what is neither required nor optional is EINVAL.

namespace millrace::soft {
namespace {

constexpr int kPath = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
constexpr int kAlternate = IBV_QP_ALT_PATH;

struct Row {
  ibv_qp_type type;
  ibv_qp_state from, to;
  int required;
  int optional;
};

constexpr ibv_qp_type kIni = IBV_QPT_XRC_SEND;
constexpr ibv_qp_type kTgt = IBV_QPT_XRC_RECV;
constexpr ibv_qp_type kRc = IBV_QPT_RC;
constexpr ibv_qp_type kUc = IBV_QPT_UC;
constexpr ibv_qp_type kUd = IBV_QPT_UD;
constexpr ibv_qp_type kRaw = IBV_QPT_RAW_PACKET;

constexpr int kRtsOptional =
    IBV_QP_CUR_STATE | kAlternate | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE;
constexpr int kSqdOptional = kPath | IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                             IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC | kAlternate |
                             IBV_QP_PATH_MIG_STATE | IBV_QP_CUR_STATE;

constexpr int kUcConnects = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
constexpr int kRcConnects = kUcConnects | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
constexpr int kRcSends =
    IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
constexpr int kRtrOptional = kAlternate | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX;

constexpr int kUdInit = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;

constexpr Row kRows[] = {
    {kUd, IBV_QPS_RESET, IBV_QPS_INIT, kUdInit, 0},
    {kUd, IBV_QPS_INIT, IBV_QPS_INIT, 0, kUdInit},
    {kUd, IBV_QPS_INIT, IBV_QPS_RTR, 0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY},
    {kUd, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN, IBV_QP_CUR_STATE | IBV_QP_QKEY},
    {kUd, IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_QKEY},
    {kUd, IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {kUd, IBV_QPS_SQD, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_QKEY},
    {kUd, IBV_QPS_SQD, IBV_QPS_SQD, 0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY},
    {kUd, IBV_QPS_SQE, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_QKEY},
    {kUc, IBV_QPS_SQE, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS},
    {kRaw, IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PORT, 0},
    {kRaw, IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PORT},
    {kRaw, IBV_QPS_INIT, IBV_QPS_RTR, 0, 0},
    {kRaw, IBV_QPS_RTR, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE},
    {kRaw, IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE},
    {kRaw, IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {kRaw, IBV_QPS_SQD, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE},
    {kRc, IBV_QPS_RESET, IBV_QPS_INIT, kPath, 0},
    {kUc, IBV_QPS_RESET, IBV_QPS_INIT, kPath, 0},
    {kRc, IBV_QPS_INIT, IBV_QPS_INIT, 0, kPath},
    {kUc, IBV_QPS_INIT, IBV_QPS_INIT, 0, kPath},
    {kRc, IBV_QPS_INIT, IBV_QPS_RTR, kRcConnects, kRtrOptional},
    {kUc, IBV_QPS_INIT, IBV_QPS_RTR, kUcConnects, kRtrOptional},
    {kRc, IBV_QPS_RTR, IBV_QPS_RTS, kRcSends, kRtsOptional | IBV_QP_MIN_RNR_TIMER},
    {kUc, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN, kRtsOptional},
    {kRc, IBV_QPS_RTS, IBV_QPS_RTS, 0, kRtsOptional | IBV_QP_MIN_RNR_TIMER},
    {kUc, IBV_QPS_RTS, IBV_QPS_RTS, 0, kRtsOptional},
    {kRc, IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {kUc, IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {kRc, IBV_QPS_SQD, IBV_QPS_RTS, 0, kRtsOptional | IBV_QP_MIN_RNR_TIMER},
    {kUc, IBV_QPS_SQD, IBV_QPS_RTS, 0, kRtsOptional},
    {kRc, IBV_QPS_SQD, IBV_QPS_SQD, 0,
     kPath | IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
         IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC | kAlternate | IBV_QP_MIN_RNR_TIMER |
         IBV_QP_PATH_MIG_STATE},
    {kUc, IBV_QPS_SQD, IBV_QPS_SQD, 0,
     IBV_QP_AV | kAlternate | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PATH_MIG_STATE},
    {kIni, IBV_QPS_RESET, IBV_QPS_INIT, kPath, 0},
    {kTgt, IBV_QPS_RESET, IBV_QPS_INIT, kPath, 0},
    {kIni, IBV_QPS_INIT, IBV_QPS_INIT, 0, kPath},
    {kTgt, IBV_QPS_INIT, IBV_QPS_INIT, 0, kPath},
    {kIni, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
     kAlternate | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {kTgt, IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
         IBV_QP_MIN_RNR_TIMER,
     kAlternate | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {kIni, IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
     kRtsOptional},
    {kTgt, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_TIMEOUT | IBV_QP_SQ_PSN,
     kRtsOptional | IBV_QP_MIN_RNR_TIMER},
    {kIni, IBV_QPS_RTS, IBV_QPS_RTS, 0, kRtsOptional},
    {kTgt, IBV_QPS_RTS, IBV_QPS_RTS, 0, kRtsOptional | IBV_QP_MIN_RNR_TIMER},
    {kIni, IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {kTgt, IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {kIni, IBV_QPS_SQD, IBV_QPS_RTS, 0, kRtsOptional},
    {kTgt, IBV_QPS_SQD, IBV_QPS_RTS, 0, kRtsOptional | IBV_QP_MIN_RNR_TIMER},
    {kIni, IBV_QPS_SQD, IBV_QPS_SQD, 0, kSqdOptional},
    {kTgt, IBV_QPS_SQD, IBV_QPS_SQD, 0,
     kPath | IBV_QP_AV | IBV_QP_TIMEOUT | kAlternate | IBV_QP_PATH_MIG_STATE |
         IBV_QP_MIN_RNR_TIMER | IBV_QP_CUR_STATE},
};

const char* state_name(ibv_qp_state state) {
  static constexpr const char* kNames[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
  return state <= IBV_QPS_ERR ? kNames[state] : "?";
}

std::string mask_names(int mask) {
  static constexpr struct {
    int bit;
    const char* name;
  } kNames[] = {
      {IBV_QP_STATE, "STATE"},
      {IBV_QP_CUR_STATE, "CUR_STATE"},
      {IBV_QP_EN_SQD_ASYNC_NOTIFY, "EN_SQD_ASYNC_NOTIFY"},
      {IBV_QP_ACCESS_FLAGS, "ACCESS_FLAGS"},
      {IBV_QP_PKEY_INDEX, "PKEY_INDEX"},
      {IBV_QP_PORT, "PORT"},
      {IBV_QP_QKEY, "QKEY"},
      {IBV_QP_AV, "AV"},
      {IBV_QP_PATH_MTU, "PATH_MTU"},
      {IBV_QP_TIMEOUT, "TIMEOUT"},
      {IBV_QP_RETRY_CNT, "RETRY_CNT"},
      {IBV_QP_RNR_RETRY, "RNR_RETRY"},
      {IBV_QP_RQ_PSN, "RQ_PSN"},
      {IBV_QP_MAX_QP_RD_ATOMIC, "MAX_QP_RD_ATOMIC"},
      {IBV_QP_ALT_PATH, "ALT_PATH"},
      {IBV_QP_MIN_RNR_TIMER, "MIN_RNR_TIMER"},
      {IBV_QP_SQ_PSN, "SQ_PSN"},
      {IBV_QP_MAX_DEST_RD_ATOMIC, "MAX_DEST_RD_ATOMIC"},
      {IBV_QP_PATH_MIG_STATE, "PATH_MIG_STATE"},
      {IBV_QP_CAP, "CAP"},
      {IBV_QP_DEST_QPN, "DEST_QPN"},
  };
  std::string out;
  for (const auto& n : kNames) {
    if ((mask & n.bit) == 0) continue;
    out += out.empty() ? "" : ", ";
    out += n.name;
    mask &= ~n.bit;
  }
  if (mask != 0) out += base::format("%s%#x", out.empty() ? "" : ", ", static_cast<unsigned>(mask));
  return out;
}

}  // namespace

int strip_mask(ibv_qp_type type, int mask) {
  if (type == kIni) return mask & ~(IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (type == kTgt) return mask & ~(IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY);
  return mask;
}

bool mask_is_ok(ibv_qp_type type, ibv_qp_state from, ibv_qp_state to, int mask, std::string* why) {
  mask &= ~IBV_QP_STATE;
  const std::string step = base::format("%s to %s", state_name(from), state_name(to));
  int required = 0, optional = 0;
  if (to == IBV_QPS_RESET || (to == IBV_QPS_ERR && from != IBV_QPS_RESET)) {
    // always allowed, and needs nothing
  } else {
    const Row* found = nullptr;
    for (const Row& row : kRows) {
      if (row.type == type && row.from == from && row.to == to) found = &row;
    }
    if (found == nullptr) {
      *why = "there is no transition " + step;
      return false;
    }
    required = found->required;
    optional = found->optional;
  }
  if ((mask & required) != required) {
    *why = step + " needs also " + mask_names(required & ~mask);
    return false;
  }
  if ((mask & ~(required | optional)) != 0) {
    *why = step + " does not take " + mask_names(mask & ~(required | optional));
    return false;
  }
  return true;
}

}  // namespace millrace::soft
