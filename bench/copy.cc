// What a copy costs: MiB/s of memcpy between two shared mappings of files, as the software device
// copies between registered regions that are such mappings.
//
//   copy FILE FILE BYTES COUNT     prints a number, or what failed (exit code 1)
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

namespace {

[[noreturn]] void give_up(const char* what) {
  fprintf(stderr, "%s: %s\n", what, strerror(errno));
  exit(1);
}

double now_s() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

char* map(const char* path, size_t bytes) {
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) give_up(path);
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) give_up("map a file");
  close(fd);
  memset(at, 1, bytes);
  return static_cast<char*>(at);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    fprintf(stderr, "usage: copy FILE FILE BYTES COUNT\n");
    return 1;
  }
  const size_t bytes = strtoull(argv[3], nullptr, 10);
  const int count = atoi(argv[4]);
  const char* from = map(argv[1], bytes);
  char* to = map(argv[2], bytes);
  memcpy(to, from, bytes);
  const double began = now_s();
  for (int i = 0; i < count; ++i) {
    memcpy(to, from, bytes);
    asm volatile("" : : "r"(to) : "memory");  // or only the last one counts
  }
  printf("%.2f\n", static_cast<double>(bytes) * count / (now_s() - began) / (1 << 20));
}
