// The progress of counted work: one line that updates itself on a terminal, and a few plain lines in any other stream.
#pragma once
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>

namespace colossal {

enum class ProgressStyle { kAuto, kTerminal, kLines, kSilent };  // kAuto: kTerminal if the stream is one, else kLines

/// A progress display. Plain lines are printed for the first and the last update. Between these, a line is printed
/// after a twentieth of the total or after ten seconds. The log of a long run is thus short, and the log of a short run
/// has enough lines.
/// Thread safety: none.
class Progress {
 public:
  /// `total` may be 0 = unknown; there is no bar and no remaining time then. `clock` returns seconds; empty = the
  /// steady clock.
  Progress(std::string title, int64_t total, std::FILE* stream = stderr, ProgressStyle style = ProgressStyle::kAuto,
           std::function<double()> clock = {});
  /// Calls finish().
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Reports that `done` of `total` are complete. `text` is the message to show ("loss 3.21  12.4k tokens/s").
  void update(int64_t done, const std::string& text);
  /// Prints a permanent line above the updating one.
  void line(const std::string& text);
  /// Prints the last state as a permanent line and ends the open line.
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
  std::string open_line_;  // the line that the terminal shows
};

/// Returns a duration for people: "1h 02m", "3m 20s", "12s".
std::string readable_duration(double seconds);

}  // namespace colossal
