// Lines that somebody types, one at a time, while signals may come.
//
//   InputLines lines(STDIN_FILENO);
//   while (const auto line = lines.next()) ...
#pragma once
#include <optional>
#include <string>

namespace colossal::cli {

class InputLines {
 public:
  explicit InputLines(int descriptor) : descriptor_(descriptor) {}
  /// The next line without its end; the last one may have none. Nothing: at the end, or because stop_requested() came
  /// true while nothing was there (cli/local_world.h). Errors ("input"): a line of more than 16 MiB, reading failed.
  std::optional<std::string> next();

 private:
  bool read_more();

  int descriptor_;
  std::string held_;
  bool is_at_end_ = false;
};

}  // namespace colossal::cli
