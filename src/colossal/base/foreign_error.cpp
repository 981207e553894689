#include "colossal/base/foreign_error.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <new>

#include "colossal/base/json.h"

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

Error as_error(const std::exception& error) {
  if (const auto* own = dynamic_cast<const Error*>(&error)) return *own;
  const std::string message = plain_message(error);
  const bool lacks_memory = dynamic_cast<const std::bad_alloc*>(&error) ||
                            message.find("DefaultCPUAllocator: can't allocate memory") != std::string::npos;
  if (lacks_memory) return {"memory", "out of memory; use a smaller model, batch or sequence, or more ranks"};
  if (const auto* file = dynamic_cast<const std::filesystem::filesystem_error*>(&error))
    return {"file", concat(file->path1().string(), file->path2().empty() ? "" : " to ", file->path2().string(), ": ",
                           file->code().message())};
  if (dynamic_cast<const nlohmann::json::type_error*>(&error) != nullptr && message.find("UTF-8") != std::string::npos)
    return {"json", "JSON must be UTF-8: got a name or a text with other bytes; rename or convert it"};
  return {"libtorch", message.substr(0, message.find('\n'))};
}

void exit_on_uncaught_error() {
  static const bool is_done = [] {
    previous() = std::set_terminate(end_process);
    return true;
  }();
  static_cast<void>(is_done);
}

}  // namespace colossal
