#include "colossal/base/uncaught_error.h"

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "colossal/base/error.h"

namespace colossal {
namespace {

std::terminate_handler& previous() {  // a static, because a process has one handler
  static std::terminate_handler handler = nullptr;
  return handler;
}

[[noreturn]] void end_process() {
  if (const std::exception_ptr error = std::current_exception()) {
    try {
      std::rethrow_exception(error);
    } catch (const Error& uncaught) {
      std::fflush(stdout);
      std::fprintf(stderr, "%s\n", plain_message(uncaught).c_str());
      std::_Exit(1);  // runs no destructors, because other threads still run
    } catch (...) {
      // The exception is not an Error, so the previous handler gets it.
    }
  }
  if (previous()) previous()();
  std::abort();
}

}  // namespace

void exit_on_uncaught_error() {
  static const bool is_done = [] {
    previous() = std::set_terminate(end_process);
    return true;
  }();
  static_cast<void>(is_done);
}

}  // namespace colossal
