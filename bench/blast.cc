// Sends UDP at a rate: blast ADDRESS PORT BYTES RATE MILLISECONDS, and prints how many it sent.
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <vector>

namespace {

double now() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<double>(ts.tv_sec) + static_cast<double>(ts.tv_nsec) / 1e9;
}

}  // namespace

int main(int count, char** words) {
  if (count != 6) return 2;
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  inet_pton(AF_INET, words[1], &to.sin_addr);
  to.sin_port = htons(static_cast<uint16_t>(atoi(words[2])));
  std::vector<char> payload(static_cast<size_t>(atoi(words[3])), '.');
  const double rate = atof(words[4]), seconds = atof(words[5]) / 1000;
  const int fd = socket(AF_INET, SOCK_DGRAM, 0);
  if (fd < 0 || connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) return 1;
  constexpr unsigned kBatch = 32;
  iovec part = {payload.data(), payload.size()};
  mmsghdr messages[kBatch] = {};
  for (mmsghdr& one : messages) {
    one.msg_hdr.msg_iov = &part;
    one.msg_hdr.msg_iovlen = 1;
  }
  const double start = now();
  double sent = 0;
  for (double at = start; at < start + seconds; at = now()) {
    // What is due by now; in small batches, with the CPU given away in between.
    const double due = std::min((at - start) * rate - sent, static_cast<double>(kBatch));
    if (due < 1) {
      const timespec pause = {0, 50'000};
      nanosleep(&pause, nullptr);
      continue;
    }
    const int n = sendmmsg(fd, messages, static_cast<unsigned>(due), 0);
    if (n > 0) sent += n;
  }
  printf("%.0f\n", sent);
}
