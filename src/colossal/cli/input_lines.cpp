#include "colossal/cli/input_lines.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "colossal/base/error.h"
#include "colossal/cli/local_world.h"

namespace colossal::cli {
namespace {

constexpr size_t kMaxLineBytes = 16 << 20;

}  // namespace

// Returns false if a signal arrived before any byte was read.
bool InputLines::read_more() {
  // A signal interrupts poll() even if its handler restarts read().
  pollfd wanted{descriptor_, POLLIN, 0};
  if (::poll(&wanted, 1, -1) < 0) {
    require(errno == EINTR, "input", "cannot wait for a line: ", std::generic_category().message(errno));
    return !stop_requested();
  }
  char bytes[4096];
  const ssize_t got = ::read(descriptor_, bytes, sizeof bytes);
  require(got >= 0 || errno == EINTR, "input", "cannot read a line: ", std::generic_category().message(errno));
  if (got > 0) held_.append(bytes, static_cast<size_t>(got));
  is_at_end_ = got == 0;
  return true;
}

std::optional<std::string> InputLines::next() {
  size_t searched = 0, end;
  while ((end = held_.find('\n', searched)) == std::string::npos && !is_at_end_) {
    searched = held_.size();
    require(searched <= kMaxLineBytes, "input", "a line must have at most ", kMaxLineBytes, " bytes");
    if (stop_requested() || !read_more()) return std::nullopt;
  }
  if (end == std::string::npos && held_.empty()) return std::nullopt;
  std::string line = held_.substr(0, end);
  held_.erase(0, end == std::string::npos ? held_.size() : end + 1);
  if (!line.empty() && line.back() == '\r') line.pop_back();
  return line;
}

}  // namespace colossal::cli
