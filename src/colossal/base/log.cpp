#include "colossal/base/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>

namespace colossal {
namespace {

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kSilent:
      break;
  }
  return spdlog::level::off;
}

}  // namespace

struct Log::Sinks {
  // Not registered by name with spdlog: its registry is global, and ranks may be threads of one process.
  spdlog::logger logger{"colossal"};
};

Log::Log(const LogOptions& options) : sinks_(std::make_unique<Sinks>()) {
  const std::string rank = options.size > 1 ? concat("rank ", options.rank, "  ") : "";
  const LogLevel screen = options.rank == 0 ? options.screen : std::max(options.screen, LogLevel::kWarning);
  auto& logger = sinks_->logger;
  if (screen != LogLevel::kSilent) {
    auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
    sink->set_level(spdlog_level(screen));
    const std::string clear_line = ::isatty(2) ? "\r\x1b[K" : "";  // over a progress line that may be open there
    sink->set_pattern(clear_line + "%H:%M:%S %L  " + rank + "%v");
    logger.sinks().push_back(std::move(sink));
  }
  if (!options.file.empty()) {
    try {
      auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(options.file);
      sink->set_pattern("%Y-%m-%d %H:%M:%S.%e %l  " + rank + "%v");
      logger.sinks().push_back(std::move(sink));
    } catch (const spdlog::spdlog_ex& error) {
      throw Error("log", concat("cannot open ", options.file, ": ", error.what()));
    }
  }
  logger.set_level(logger.sinks().empty() ? spdlog::level::off : spdlog::level::debug);
  logger.flush_on(spdlog::level::debug);
  logger.set_error_handler([](const std::string&) {});  // a full disk must not end a training run
}

Log Log::silent() { return Log({.screen = LogLevel::kSilent}); }
Log::~Log() = default;
Log::Log(Log&&) noexcept = default;
Log& Log::operator=(Log&&) noexcept = default;

void Log::write(LogLevel level, const std::string& text) const {
  sinks_->logger.log(spdlog_level(level), spdlog::string_view_t(text));
}

}  // namespace colossal
