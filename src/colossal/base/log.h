// The log of one rank, written to stderr and to a file. Functions get it as an argument; it is never a global.
#pragma once
#include <memory>
#include <string>

#include "colossal/base/error.h"

namespace colossal {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kSilent };

struct LogOptions {
  int rank = 0;
  int size = 1;  ///< number of ranks; above 1, each line has `rank r`
  /// The lowest level that stderr shows. Ranks other than 0 show warnings and errors only.
  LogLevel screen = LogLevel::kInfo;
  std::string file = {};  ///< path of the file, which is appended to and gets every level; "" = no file
};

/// A log with up to two outputs: stderr and a file. Each line is flushed at once, so the file of a killed rank has its
/// last lines.
///
/// Thread safety: any thread may call the members.
/// Errors: the constructor throws if the file cannot be opened; writing never throws.
class Log {
 public:
  explicit Log(const LogOptions& options = {});
  /// Returns a log that writes nothing.
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
