#include "colossal/base/checksum.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "colossal/base/error.h"

namespace colossal {
namespace {

std::string hex_of(XXH128_hash_t hash) {
  char text[33];
  std::snprintf(text, sizeof(text), "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text;
}

}  // namespace

struct Checksum::State {
  State() : xxh(XXH3_createState()) { XXH3_128bits_reset(xxh); }
  ~State() { XXH3_freeState(xxh); }
  XXH3_state_t* xxh;
};

Checksum::Checksum() : state_(std::make_unique<State>()) {}
Checksum::~Checksum() = default;
Checksum::Checksum(Checksum&&) noexcept = default;
Checksum& Checksum::operator=(Checksum&&) noexcept = default;

void Checksum::update(const void* bytes, size_t count) {
  if (count > 0) XXH3_128bits_update(state_->xxh, bytes, count);
}

std::string Checksum::hex() const { return hex_of(XXH3_128bits_digest(state_->xxh)); }

std::string checksum(const void* bytes, size_t count) { return hex_of(XXH3_128bits(bytes, count)); }

uint64_t checksum_number(const void* bytes, size_t count) { return XXH3_64bits(bytes, count); }

std::string file_checksum(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  require(descriptor >= 0, "file", "cannot open ", path, ": ", std::strerror(errno));
  Checksum sum;
  std::vector<char> piece(1 << 20);
  ssize_t taken = 0;
  do {
    taken = ::read(descriptor, piece.data(), piece.size());
    if (taken > 0) sum.update(piece.data(), static_cast<size_t>(taken));
  } while (taken > 0 || (taken < 0 && errno == EINTR));
  const int error = errno;
  ::close(descriptor);
  require(taken == 0, "file", "cannot read ", path, ": ", std::strerror(error));
  return sum.hex();
}

}  // namespace colossal
