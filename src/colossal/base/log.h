// The log of one rank: to stderr for people and to a file for afterwards. An argument, never a global.
#pragma once
#include <memory>
#include <string>

#include "colossal/base/error.h"

namespace colossal {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kSilent };

struct LogOptions {
  int rank = 0;
  int size = 1;  // lines carry `rank r` where there are several
  // least level that reaches stderr; ranks other than 0 show warnings and errors only
  LogLevel screen = LogLevel::kInfo;
  std::string file = {};  // "" for none; appended to; everything from kDebug up
};

/// Thread safety: calls may come from any thread. Lines are flushed at once, so that a killed rank leaves its last
///                words.
/// Errors: the constructor throws if the file cannot be opened; writing never throws.
class Log {
 public:
  explicit Log(const LogOptions& options = {});
  static Log silent();
  ~Log();
  Log(Log&&) noexcept;
  Log& operator=(Log&&) noexcept;

  template <class... Parts>
  void debug(const Parts&... parts) const {
    write(LogLevel::kDebug, concat(parts...));
  }
  template <class... Parts>
  void info(const Parts&... parts) const {
    write(LogLevel::kInfo, concat(parts...));
  }
  template <class... Parts>
  void warning(const Parts&... parts) const {
    write(LogLevel::kWarning, concat(parts...));
  }
  template <class... Parts>
  void error(const Parts&... parts) const {
    write(LogLevel::kError, concat(parts...));
  }

  void write(LogLevel level, const std::string& text) const;

 private:
  struct Sinks;
  std::unique_ptr<Sinks> sinks_;
};

}  // namespace colossal
