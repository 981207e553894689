// Gives the controlling terminal of this process to the process group of a rank, as a shell does for a job.
#pragma once
#include <sys/types.h>
#include <termios.h>

#include <optional>

namespace colossal::comm {

/// The controlling terminal. Its foreground process group reads what the user types and gets the signals of Ctrl-C and
/// Ctrl-Z. The caller blocks SIGTTOU. Without a terminal all functions do nothing.
class Foreground {
 public:
  Foreground();
  /// Takes the terminal back.
  ~Foreground();
  Foreground(const Foreground&) = delete;
  Foreground& operator=(const Foreground&) = delete;

  /// Makes `group` the foreground process group. Returns false if there is no terminal, or if neither this process nor
  /// the holder is in its foreground.
  bool give_to(pid_t group);
  /// Makes the process group of this process the foreground again, with the modes that the terminal had before the
  /// first give_to(). Does nothing if the terminal has been given to a process outside of this run in the meantime.
  void take_back();
  /// Returns the process group that has the terminal; 0 = no other group has it.
  pid_t holder() const { return holder_; }

 private:
  const int descriptor_;
  pid_t holder_ = 0;
  std::optional<termios> modes_;  // before the first give_to()
};

}  // namespace colossal::comm
