// What one work request costs in a process that has many QPs open: ns of a posted 8-byte WRITE and
// the poll that finds its completion, on one QP, while the others are connected and idle. Each is
// connected to itself: so the first one's work is the same however many there are.
//
//   qps COUNT [ROUNDS]     prints a number, or what failed (exit code 1)
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <algorithm>
#include <vector>

namespace {

[[noreturn]] void give_up(const char* what) {
  fprintf(stderr, "%s: %s\n", what, strerror(errno));
  exit(1);
}

double now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

void connect(ibv_qp* qp, const ibv_qp* peer, const ibv_port_attr& port) {
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  if (ibv_modify_qp(qp, &attr,
                    IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS) != 0)
    give_up("to INIT");
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_4096;
  attr.dest_qp_num = peer->qp_num;
  attr.max_dest_rd_atomic = 1;
  attr.min_rnr_timer = 12;
  attr.ah_attr.dlid = port.lid;
  attr.ah_attr.port_num = 1;
  if (ibv_modify_qp(qp, &attr,
                    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) != 0)
    give_up("to RTR");
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = 14;
  attr.retry_cnt = 7;
  attr.rnr_retry = 7;
  attr.max_rd_atomic = 1;
  if (ibv_modify_qp(qp, &attr,
                    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                        IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) != 0)
    give_up("to RTS");
}

}  // namespace

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::max(1, atoi(argv[1])) : 1;
  const int rounds = argc > 2 ? atoi(argv[2]) : 200000;
  ibv_device** list = ibv_get_device_list(nullptr);
  if (list == nullptr || list[0] == nullptr) give_up("find a device");
  ibv_context* context = ibv_open_device(list[0]);
  if (context == nullptr) give_up("open the device");
  ibv_free_device_list(list);
  ibv_port_attr port = {};
  if (ibv_query_port(context, 1, &port) != 0) give_up("query the port");
  ibv_pd* pd = ibv_alloc_pd(context);
  ibv_cq* cq = ibv_create_cq(context, 64, nullptr, nullptr, 0);
  if (pd == nullptr || cq == nullptr) give_up("create a PD and a CQ");
  alignas(64) static char memory[128];
  ibv_mr* mr =
      ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  if (mr == nullptr) give_up("register memory");

  ibv_qp_init_attr init = {};
  init.send_cq = init.recv_cq = cq;
  init.qp_type = IBV_QPT_RC;
  init.cap = {4, 1, 1, 1, 0};
  std::vector<ibv_qp*> qps;
  for (int i = 0; i < count; ++i) {
    ibv_qp* qp = ibv_create_qp(pd, &init);
    if (qp == nullptr) give_up("create a QP");
    qps.push_back(qp);
  }
  for (ibv_qp* qp : qps) connect(qp, qp, port);

  ibv_sge sge = {reinterpret_cast<uintptr_t>(memory), 8, mr->lkey};
  ibv_send_wr wr = {};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = reinterpret_cast<uintptr_t>(memory + 64);
  wr.wr.rdma.rkey = mr->rkey;
  // The fastest of some batches: what others do on this machine only ever adds.
  double best = 1e18;
  constexpr int kBatches = 20;
  for (int batch = 0; batch < kBatches; ++batch) {
    const double began = now_ns();
    for (int i = 0; i < rounds / kBatches; ++i) {
      ibv_send_wr* bad = nullptr;
      if ((errno = ibv_post_send(qps[0], &wr, &bad)) != 0) give_up("post");
      ibv_wc wc;
      while (ibv_poll_cq(cq, 1, &wc) == 0) {
      }
      if (wc.status != IBV_WC_SUCCESS) give_up(ibv_wc_status_str(wc.status));
    }
    best = std::min(best, (now_ns() - began) / (rounds / kBatches));
  }
  printf("%.1f\n", best);
  for (ibv_qp* qp : qps) ibv_destroy_qp(qp);
  ibv_dereg_mr(mr);
  ibv_destroy_cq(cq);
  ibv_dealloc_pd(pd);
  ibv_close_device(context);
}
