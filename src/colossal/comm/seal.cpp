#include "colossal/comm/seal.h"

#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "colossal/base/error.h"

namespace colossal::comm {
namespace {

constexpr size_t kTagDigits = 16;

std::string hex(uint64_t value) {
  char text[kTagDigits + 1];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

/// Reads up to eight bytes, the first being the least significant.
uint64_t word(const char* bytes, size_t count) {
  uint64_t value = 0;
  for (size_t i = 0; i < count; ++i) value |= uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  return value;
}

struct SipState {
  uint64_t a, b, c, d;
  void mix(int rounds) {
    for (int i = 0; i < rounds; ++i) {
      a += b, b = std::rotl(b, 13) ^ a, a = std::rotl(a, 32);
      c += d, d = std::rotl(d, 16) ^ c;
      a += d, d = std::rotl(d, 21) ^ a;
      c += b, b = std::rotl(b, 17) ^ c, c = std::rotl(c, 32);
    }
  }
  void take(uint64_t value) {
    d ^= value;
    mix(2);
    a ^= value;
  }
};

}  // namespace

std::string random_text() {
  uint64_t words[2];
  const int error = getentropy(words, sizeof words) == 0 ? 0 : errno;
  require(error == 0, "launch", "the system has no random numbers: ", std::strerror(error));
  return hex(words[0]) + hex(words[1]);
}

uint64_t keyed_hash(const HashKey& key, std::string_view text) {
  SipState state{key.low ^ 0x736f6d6570736575, key.high ^ 0x646f72616e646f6d, key.low ^ 0x6c7967656e657261,
                 key.high ^ 0x7465646279746573};
  const size_t whole = text.size() / 8 * 8;
  for (size_t i = 0; i < whole; i += 8) state.take(word(text.data() + i, 8));
  state.take(word(text.data() + whole, text.size() - whole) | uint64_t{text.size()} << 56);
  state.c ^= 0xff;
  state.mix(4);
  return state.a ^ state.b ^ state.c ^ state.d;
}

Seal::Seal(std::string_view secret) : key_{keyed_hash({0, 1}, secret), keyed_hash({0, 2}, secret)} {}

std::string Seal::tag(const std::string& name, std::string_view value) const {
  // The length separates name and value; without it, characters could move from one to the other.
  return hex(keyed_hash(key_, concat(name.size(), " ", name, value)));
}

std::string Seal::close(const std::string& name, const std::string& value) const { return tag(name, value) + value; }

std::optional<std::string> Seal::open(const std::string& name, const std::string& sealed) const {
  if (sealed.size() < kTagDigits) return std::nullopt;
  const std::string value = sealed.substr(kTagDigits);
  if (sealed.compare(0, kTagDigits, tag(name, value)) != 0) return std::nullopt;
  return value;
}

}  // namespace colossal::comm
