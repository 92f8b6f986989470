// Sends UDP at a rate: blast ADDRESS PORT BYTES RATE MILLISECONDS, and prints how many it sent.
// One system call hands over many datagrams (UDP_SEGMENT), which the kernel cuts where the
// interface leaves: a datagram costs a third of what it does by sendmmsg.
#include <arpa/inet.h>
#include <linux/udp.h>
#include <netinet/in.h>
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
  const int bytes = atoi(words[3]);
  // As many as fit into one packet of IP, and as every kernel takes.
  const double most = std::min(32, 65'000 / bytes);
  const std::vector<char> payload(static_cast<size_t>(bytes) * 32, '.');
  const double rate = atof(words[4]), seconds = atof(words[5]) / 1000;
  const int fd = socket(AF_INET, SOCK_DGRAM, 0);
  if (fd < 0 || connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0 ||
      setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &bytes, sizeof(bytes)) != 0)
    return 1;
  const double start = now();
  double sent = 0;
  for (double at = start; at < start + seconds; at = now()) {
    // What is due by now; in small batches, with the CPU given away in between.
    const auto due = static_cast<int>(std::min((at - start) * rate - sent, most));
    if (due < 1) {
      const timespec pause = {0, 50'000};
      nanosleep(&pause, nullptr);
      continue;
    }
    if (send(fd, payload.data(), static_cast<size_t>(due * bytes), 0) > 0) sent += due;
  }
  printf("%.0f\n", sent);
}
