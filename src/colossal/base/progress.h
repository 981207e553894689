// The progress of something counted: one line that updates itself on a terminal, some plain lines anywhere else.
#pragma once
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>

namespace colossal {

enum class ProgressStyle { kAuto, kTerminal, kLines, kSilent };  // kAuto: kTerminal if the stream is one, else kLines

/// Plain lines are printed for the first and the last update, and between them whenever a twentieth of the whole or ten
/// seconds have passed, so a log of a long run stays short and a short one says enough.
/// Thread safety: none.
class Progress {
 public:
  /// `total` may be 0 (unknown): no bar and no remaining time then. `clock` returns seconds; the steady clock if empty.
  Progress(std::string title, int64_t total, std::FILE* stream = stderr, ProgressStyle style = ProgressStyle::kAuto,
           std::function<double()> clock = {});
  /// Ends the line, if one is open.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `done` of `total` are through; `text` says what there is to say ("loss 3.21  12.4k tokens/s").
  void update(int64_t done, const std::string& text);
  /// A whole line that stays, above the updating one.
  void line(const std::string& text);
  /// Leaves the last state as a line of its own.
  void finish();

 private:
  std::string render(int64_t done, const std::string& text) const;
  void print_terminal(const std::string& text);

  std::string title_;
  int64_t total_;
  std::FILE* stream_;
  ProgressStyle style_;
  std::function<double()> clock_;
  double started_;
  double printed_at_ = 0;
  int64_t first_done_ = -1;
  int64_t printed_done_ = -1;
  std::string pending_;    // the newest state, if it has not been printed
  std::string open_line_;  // what the terminal shows
};

/// "1h 02m", "3m 20s", "12s".
std::string readable_duration(double seconds);

}  // namespace colossal
