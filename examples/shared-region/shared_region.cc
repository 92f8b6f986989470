// Two processes of one host and one region: the server makes it, registers it and sends its handle
// over a socket; the client maps the same pages and fills them with 0x7b; the server verifies every
// byte.
//
//   shared_region [-p port] [-d device] [-s bytes] [-n rounds] [-a address]          the server
//   shared_region [the same] 127.0.0.1                                               the client
//
// Ends with 0 when all rounds were right. Both must be on one host; the client may be another user
// of the server's group.
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <netdb.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/files.h"
#include "transport/shared_region.h"
#include "verbs/open.h"
#include "verbs/owners.h"

namespace {

using namespace millrace;

constexpr std::byte kFilled{0x7b};

struct Options {
  uint16_t port = 18515;         ///< of the server; 0: any, which it prints
  std::string device = "auto";   ///< as verbs::open_device() takes it
  size_t bytes = 4096;           ///< of the region; the server's counts
  uint32_t rounds = 1;           ///< fill and verify so often; the server's counts
  uint64_t address = 0;          ///< the client maps it there if nothing is there
  const char* server = nullptr;  ///< null: this is the server
};

int usage(const char* program) {
  fprintf(stderr,
          "Usage: %s [options] [host]\n"
          "Without a host it is the server.\n"
          "  -p, --port=PORT      TCP port of the server, 0: any (18515)\n"
          "  -d, --device=NAME    RDMA device: soft, auto, or a name (auto)\n"
          "  -s, --size=BYTES     size of the region (4096)\n"
          "  -n, --rounds=COUNT   fill and verify so often (1)\n"
          "  -a, --address=HEX    where the client maps it, a multiple of 4 MiB\n",
          program);
  return 2;
}

/** A whole number in [least, most], or false. */
bool number(const char* text, int base, uint64_t least, uint64_t most, uint64_t* out) {
  char* end = nullptr;
  errno = 0;
  *out = strtoull(text, &end, base);
  return errno == 0 && *text != '-' && end != text && *end == '\0' && *out >= least && *out <= most;
}

bool parse(int argc, char** argv, Options* options) {
  constexpr option kLong[] = {
      {"port", required_argument, nullptr, 'p'},    {"device", required_argument, nullptr, 'd'},
      {"size", required_argument, nullptr, 's'},    {"rounds", required_argument, nullptr, 'n'},
      {"address", required_argument, nullptr, 'a'}, {nullptr, 0, nullptr, 0}};
  uint64_t value = 0;
  for (int c; (c = getopt_long(argc, argv, "p:d:s:n:a:", kLong, nullptr)) != -1;) {
    bool right = true;
    if (c == 'p') {
      right = number(optarg, 10, 0, 65535, &value);
      options->port = static_cast<uint16_t>(value);
    } else if (c == 'd') {
      options->device = optarg;
    } else if (c == 's') {
      right = number(optarg, 0, 1, uint64_t{1} << 46, &value);
      options->bytes = value;
    } else if (c == 'n') {
      right = number(optarg, 10, 1, UINT32_MAX, &value);
      options->rounds = static_cast<uint32_t>(value);
    } else if (c == 'a') {
      right = number(optarg, 16, 1, UINT64_MAX, &options->address);
    } else {
      return false;
    }
    if (!right) {
      fprintf(stderr, "-%c %s is out of range\n", c, optarg);
      return false;
    }
  }
  if (optind < argc) options->server = argv[optind++];
  return optind == argc;
}

bool failed(const base::Status& status) {
  fprintf(stderr, "%s failed: %s (%s)\n", status.what, status.detail.c_str(),
          strerror(status.code));
  return false;
}

bool failed(const char* what) { return failed(base::Status::error(errno, what)); }

/** One line without its end; false when the other side closed. */
bool read_line(FILE* peer, std::string* line) {
  char text[256];
  if (fgets(text, sizeof(text), peer) == nullptr) return false;
  line->assign(text, strcspn(text, "\n"));
  return true;
}

bool write_line(FILE* peer, const std::string& line) {
  return fprintf(peer, "%s\n", line.c_str()) > 0 && fflush(peer) == 0;
}

FILE* accept_one(const Options& options) {
  const base::Fd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(options.port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof(address);
  if (!listener.valid() ||
      setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      bind(listener.get(), any, length) != 0 || listen(listener.get(), 1) != 0 ||
      getsockname(listener.get(), any, &length) != 0) {
    (void)failed("listen");
    return nullptr;
  }
  printf("waiting on port %u\n", ntohs(address.sin_port));
  fflush(stdout);
  const int fd = accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC);
  return fd < 0 ? nullptr : fdopen(fd, "r+");
}

FILE* connect_to(const Options& options) {
  addrinfo hints = {};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(options.server, std::to_string(options.port).c_str(), &hints, &found);
  if (error != 0) {
    fprintf(stderr, "%s: %s\n", options.server, gai_strerror(error));
    return nullptr;
  }
  base::Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const bool up = fd.valid() && connect(fd.get(), found->ai_addr, found->ai_addrlen) == 0;
  if (!up) (void)failed("connect");
  freeaddrinfo(found);
  return up ? fdopen(fd.release(), "r+") : nullptr;
}

bool serve(ibv_pd* pd, const Options& options) {
  transport::SharedRegionOptions wanted;
  wanted.pages.bytes = options.bytes;
  wanted.pages.mode = 0660;
  auto made = transport::SharedRegion::create(pd, wanted);
  if (!made.ok()) return failed(made.status());
  const transport::SharedRegion& region = *made.value();
  FILE* const peer = accept_one(options);
  if (peer == nullptr) return false;
  bool right = write_line(peer, region.handle().value() + " " + std::to_string(options.rounds));
  for (uint32_t round = 0; right && round < options.rounds; ++round) {
    const auto bytes = region.bytes();
    std::fill(bytes.begin(), bytes.end(), std::byte{0});
    std::string answer;
    right = write_line(peer, "fill") && read_line(peer, &answer) && answer == "filled";
    if (!right) fprintf(stderr, "the client ended before round %u was done\n", round);
    const auto wrong =
        std::find_if(bytes.begin(), bytes.end(), [](std::byte b) { return b != kFilled; });
    if (right && wrong != bytes.end()) {
      fprintf(stderr, "round %u: byte %td is 0x%02x\n", round, wrong - bytes.begin(),
              static_cast<unsigned>(*wrong));
      right = false;
    }
  }
  if (right) {
    printf("verified %zu bytes at %p, lkey 0x%x, %u times\n", region.bytes().size(),
           region.mr()->addr, region.mr()->lkey, options.rounds);
  }
  fclose(peer);
  return right;
}

bool fill(ibv_pd* pd, const Options& options) {
  FILE* const peer = connect_to(options);
  if (peer == nullptr) return false;
  std::string line;
  bool right = read_line(peer, &line);
  const size_t space = line.find(' ');
  uint64_t rounds = 0;
  if (!right || space == std::string::npos ||
      !number(line.c_str() + space + 1, 10, 1, UINT32_MAX, &rounds)) {
    fprintf(stderr, "the server sent no handle\n");
    fclose(peer);
    return false;
  }
  auto opened = transport::SharedRegion::open(pd, line.substr(0, space), IBV_ACCESS_LOCAL_WRITE,
                                              reinterpret_cast<void*>(options.address));
  if (!opened.ok()) {
    fclose(peer);
    return failed(opened.status());
  }
  const auto bytes = opened.value()->bytes();
  for (uint64_t round = 0; right && round < rounds; ++round) {
    right = read_line(peer, &line) && line == "fill";
    if (right) std::fill(bytes.begin(), bytes.end(), kFilled);
    right = right && write_line(peer, "filled");
  }
  const ibv_mr* const mr = opened.value()->mr();
  if (right) printf("filled %zu bytes at %p, lkey 0x%x\n", mr->length, mr->addr, mr->lkey);
  fclose(peer);
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, &options)) return usage(argv[0]);
  std::string note;
  auto device = verbs::open_device(options.device, &note);
  if (!device.ok()) return failed(device.status()) ? 0 : 1;
  const verbs::ContextPtr context(device.value());
  if (!note.empty()) fprintf(stderr, "%s\n", note.c_str());
  const verbs::PdPtr pd(ibv_alloc_pd(context.get()));
  if (!pd) return failed("ibv_alloc_pd") ? 0 : 1;
  return (options.server == nullptr ? serve(pd.get(), options) : fill(pd.get(), options)) ? 0 : 1;
}
