#include "colossal/cli/standard_output.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace colossal::cli {
namespace {

/// `error` is errno of the failed write; 0 = unknown.
Error output_error(int error) {
  return Error("output", concat("standard output cannot be written: ",
                                error != 0 ? std::strerror(error) : "an earlier write failed; is its disk full?"));
}

/// Returns true if standard output is a pipe without a reader.
bool has_lost_its_reader() {
  pollfd output{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  return ::poll(&output, 1, 0) == 1 && (output.revents & POLLERR) != 0;
}

}  // namespace

void open_standard_streams() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) >= 0) continue;
    // open() returns the lowest free number, which is this descriptor. The mode is wrong on purpose, so that reads and
    // writes fail.
    const int mode = descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY;
    if (::open("/dev/null", mode) < 0) return;
  }
}

void put_line(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fputc('\n', stdout) != EOF) return;
  throw output_error(errno);
}

std::optional<Error> flush_standard_output() {
  const bool failed_before = std::ferror(stdout) != 0;
  const int error = std::fflush(stdout) == 0 ? 0 : errno;
  if ((!failed_before && error == 0) || has_lost_its_reader()) return std::nullopt;
  return output_error(error);
}

}  // namespace colossal::cli
