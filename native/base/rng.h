#pragma once

#include <cstdint>

namespace millrace::base {

/**
 * splitmix64 (Steele, Lea, Flood 2014): a tiny generator whose whole state is one word, so a
 * failing run is reproduced from its seed alone. Not for secrets. One thread at a time.
 */
class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(seed) {}

  /** The next 64 bits. */
  uint64_t next() {
    state_ += 0x9E3779B97F4A7C15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  /** A number in [0, 1). */
  double unit() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
  /** A number in [0, bound); bound must not be 0. The bias is below 2^-32 for 32-bit bounds. */
  uint64_t below(uint64_t bound) { return next() % bound; }
  /** True with the given probability. Draws even for 0 and 1, so plans that differ stay in step. */
  bool chance(double probability) { return unit() < probability; }

 private:
  uint64_t state_;
};

}  // namespace millrace::base
