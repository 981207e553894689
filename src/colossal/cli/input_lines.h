// Reads lines that a user types, one at a time, and can be interrupted by signals.
//
//   InputLines lines(STDIN_FILENO);
//   while (const auto line = lines.next()) ...
#pragma once
#include <optional>
#include <string>

namespace colossal::cli {

class InputLines {
 public:
  /// `descriptor` must stay open during the lifetime of this object, which does not close it.
  explicit InputLines(int descriptor) : descriptor_(descriptor) {}
  /// Returns the next line without its line end (\n or \r\n); the last line may have none. Returns nothing at the end
  /// of input, or if stop_requested() became true while no input was available (cli/local_world.h). Errors ("input"):
  /// a line of more than 16 MiB, a failed read.
  std::optional<std::string> next();

 private:
  bool read_more();

  int descriptor_;
  std::string held_;
  bool is_at_end_ = false;
};

}  // namespace colossal::cli
